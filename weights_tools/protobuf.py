"""The wire format of protobuf messages: enough to read fields by their numbers, without any schema."""


def fields(data):
    """Field number and value of each field of a message: an int, or bytes."""
    if isinstance(data, int):
        raise ValueError("no such message, a number is in its place")
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = varint(data, at)
        elif wire in (1, 5):
            width = 8 if wire == 1 else 4
            value, at = data[at : at + width], at + width
        elif wire == 2:
            length, at = varint(data, at)
            value, at = data[at : at + length], at + length
        else:
            raise ValueError(f"no protobuf, wire type {wire} at byte {at}")
        yield key >> 3, value


def varint(data, at):
    """The number that begins at byte `at` -> that, and where the next byte is."""
    value = shift = 0
    while True:
        if at >= len(data):
            raise ValueError("no protobuf, it ends within a field")
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def whole(value, field):
    """The value of a field that is to be a number."""
    if not isinstance(value, int):
        raise ValueError(f"no such message: field {field} is no number")
    return value
