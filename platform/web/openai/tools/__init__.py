"""Tools: how requests offer them, how templates show them, how answers call them."""
