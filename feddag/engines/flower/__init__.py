"""The same methods on a real federation: jobs travel to Flower's nodes and replies come back.

`wire` says what a message holds, `engine` who is asked and what silence means, `node` what happens beside the data,
`server` runs the loop, `app` writes the Flower app, `launch` tries it all out on one machine. Only `grid` knows Flower.
"""
