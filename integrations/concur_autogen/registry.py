"""Controllers by name, for configurations: a live controller cannot be written into a file.

A process that loads an AutoGen configuration registers its controllers first, under the names used there.
"""

from __future__ import annotations

import threading
import weakref

from concur_agents import Controller, InvalidValueError

_LOCK = threading.Lock()
_CONTROLLERS: weakref.WeakValueDictionary[str, Controller] = weakref.WeakValueDictionary()


def register(controller: Controller, name: str = "default") -> Controller:
    """Let configurations refer to `controller` as `name`, as long as it lives. Answers `controller`.

    A name may be given again, to another controller.

    Raises:
        InvalidValueError: the name is empty, or `controller` is none.
    """
    if not isinstance(controller, Controller):
        msg = f"controller={controller!r} is not usable: expected a concur_agents.Controller"
        raise InvalidValueError(msg)
    if not isinstance(name, str) or not name:
        msg = f"name={name!r} is not usable: expected a non-empty string"
        raise InvalidValueError(msg)
    with _LOCK:
        _CONTROLLERS[name] = controller
    return controller


def registered(name: str) -> Controller:
    """The controller of that name.

    Raises:
        InvalidValueError: there is none; the message lists those that are known.
    """
    with _LOCK:
        controller, known = _CONTROLLERS.get(name), sorted(_CONTROLLERS)
    if controller is None:
        listed = ", ".join(known) or "none"
        msg = (
            f"controller={name!r} is not registered in this process (known: {listed}): call"
            f" concur_autogen.register(controller, {name!r}) before the configuration is loaded"
        )
        raise InvalidValueError(msg)
    return controller


def name_of(controller: Controller) -> str:
    """The first of its names, in alphabetical order.

    Raises:
        InvalidValueError: it has none.
    """
    with _LOCK:
        names = sorted(name for name, known in _CONTROLLERS.items() if known is controller)
    if not names:
        msg = (
            "this client's controller has no name that a configuration could hold: call"
            ' concur_autogen.register(controller, "some name") before dump_component()'
        )
        raise InvalidValueError(msg)
    return names[0]
