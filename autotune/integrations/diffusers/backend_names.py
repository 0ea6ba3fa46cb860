"""The list of backends of diffusers, which is closed: a name of ours is added to it, and diffusers is imported here."""

from collections.abc import Callable, Container
from typing import Any

from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry


class EveryName(set[str]):
    """The names of a backend's arguments: those that diffusers does not find it would drop without a word."""

    def __contains__(self, name: object) -> bool:
        return True


def add_backend(name: str, function: Callable[..., Any]) -> None:
    """Add a backend: a member of the enumeration, and the function that is called with every argument there is."""
    if name not in AttentionBackendName._value2member_map_:
        member = str.__new__(AttentionBackendName, name)
        member._name_, member._value_ = name.upper(), name
        AttentionBackendName._member_names_.append(member._name_)
        AttentionBackendName._member_map_[member._name_] = member
        AttentionBackendName._value2member_map_[name] = member
    backend = AttentionBackendName(name)
    _AttentionBackendRegistry.register(backend)(function)
    names: Container[str] = EveryName(_AttentionBackendRegistry._supported_arg_names[backend])
    _AttentionBackendRegistry._supported_arg_names[backend] = names
