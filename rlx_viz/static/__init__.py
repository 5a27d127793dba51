"""The front end: ES modules, their style sheet, and the joiner that makes one text of them."""
