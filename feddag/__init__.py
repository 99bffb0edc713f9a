"""feddag: clustered federated learning for clients whose data differ."""

__version__ = "0.1.0"
