"""PTX text: one model, and its parser, printer and analyses."""
