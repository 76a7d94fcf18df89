"""Tools: how requests offer them, how templates show them, how answers call them.

An answer is taken apart here, into reasoning, words and calls. Seam: `plan_tools`, `plan_reasoning`, `AnswerReader`.
"""
