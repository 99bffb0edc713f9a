"""Published tables and figures, run again: the paper's figures beside ours."""
