"""Building blocks of the commands: options, shapes, printing, interrupts."""
