"""What is remembered when a run stops: plain attributes, of an object and of the parts that it is made of."""

from typing import Any


class Stateful:
    """An object whose memory can be saved and given back.

    Its memory is every attribute that does not start with an underscore: tensors, numbers, text, lists and dicts of
    them, and other stateful objects, which have to be there before their memory is given back.

    >>> class Counter(Stateful):
    ...     def __init__(self) -> None:
    ...         self.count, self._seen = 0, object()
    >>> one, other = Counter(), Counter()
    >>> one.count = 3
    >>> other.load_state_dict(one.state_dict())
    >>> one.state_dict(), other.count
    ({'count': 3}, 3)
    """

    def state_dict(self) -> dict[str, Any]:
        """All that is remembered."""
        return {
            name: value.state_dict() if isinstance(value, Stateful) else value
            for name, value in vars(self).items()
            if not name.startswith("_")
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remember what `state_dict` gave."""
        for name, value in state.items():
            part = vars(self).get(name)
            if isinstance(part, Stateful):
                part.load_state_dict(value)
            else:
                setattr(self, name, value)
