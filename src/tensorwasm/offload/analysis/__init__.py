"""From a module to a nest: loops found in its bytes, and one modelled for the integers that it is entered with."""
