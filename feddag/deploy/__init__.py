"""The same methods on a real federation of machines.

`app` writes the Flower app, `node` is what runs beside the data, `server` runs the loop, `launch` starts all of it on
one machine to try it out, and `keys` makes the certificates for that.
"""
