"""The tables of the lake, and the functions DataFrame -> DataFrame that make them."""
