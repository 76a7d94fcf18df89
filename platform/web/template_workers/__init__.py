"""Users' chat templates are programs: they are rendered in processes that may be killed."""
