"""The parts of the HTML report: numbers from trials, figures from numbers, sections from figures."""
