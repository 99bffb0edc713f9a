"""The same methods on a real federation of machines.

`app` writes the Flower app, `node` is what happens beside the data, `server` runs the loop, `launch` tries it all out
on one machine, `keys` makes certificates for that.
"""
