"""Jobs travel to Flower's nodes and replies come back.

`wire` says what a message holds, `transport` how it gets to a node and back, `engine` who is asked and what silence
means. Only `grid` knows Flower.
"""
