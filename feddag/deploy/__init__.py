"""The same methods on a real federation of machines.

`app` writes the Flower app, `node` does the work beside the data, `supernode`, `preload` and `shim` are the program
that receives it, `server` runs the loop, `status` says how it is, `launch` starts all of it on one machine to try it
out, and `keys` makes the certificates for that.
"""
