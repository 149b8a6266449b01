"""PTX functions as blocks of steps: names, operands, registers, labels."""
