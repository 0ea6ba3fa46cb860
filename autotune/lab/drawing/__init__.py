"""Charts and markup as SVG and HTML, for the report and for figures in files of their own."""
