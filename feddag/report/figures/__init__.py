"""The figures of a page, as plotly.js takes them: plain data, one module for each subject."""
