"""Ways to damage a file: any bytes, and text, JSON, archives, pickles and images by their form."""

from __future__ import annotations

import io
import json
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

Mutator = Callable[[bytes, Random], bytes]
"""From the content of a file to another one; it may raise `Unfit` and then another is tried."""


class Unfit(Exception):
    """The content has not the form that the mutator needs."""


EXTREMES = (0, 1, 2, 3, 7, 8, 255, 1 << 15, (1 << 16) - 1, (1 << 29) - 1, 1 << 31, (1 << 32) - 1)
EXTREMES += (1 << 40, (1 << 62) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)

NUMBERS = ("0", "-1", "1e999", "-1e999", "nan", "inf", "-inf", "1_000", "0x10", "１２", "²", "1.5")
NUMBERS += ("9" * 18, "9" * 19, "9" * 20, "9" * 5000, "1" + "0" * 400, "1e-400", "00", "+1", "")

TEXTS = ("", " ", "\t", "\0", "\x1b[31mred", "a\rb", "a\x85b\u2028c", "\u202egpj", "../../x", "/x")
TEXTS += ("=cmd()", "C:\\x", "[bold]x[/bold]", "x" * 300, "y" * 12_000, "\ufeff", "ﬃ", "é" * 200)


def flip_bits(content: bytes, random: Random) -> bytes:
    changed = bytearray(_some(content))
    for _ in range(random.choice((1, 1, 2, 8))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def set_bytes(content: bytes, random: Random) -> bytes:
    start, stop = _span(content, random, 8)
    fill = random.choice((b"\0", b"\xff", b"\x7f", b"\x80", None))
    length = stop - start
    new = random.randbytes(length) if fill is None else fill * length
    return content[:start] + new + content[stop:]


def truncate(content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content) + 1)]


def cut(content: bytes, random: Random) -> bytes:
    start, stop = _span(content, random)
    return content[:start] + content[stop:]


def duplicate(content: bytes, random: Random) -> bytes:
    start, stop = _span(content, random)
    return content[:stop] + content[start:stop] * random.choice((1, 1, 2, 20)) + content[stop:]


def splice(content: bytes, random: Random) -> bytes:
    """Copy a stretch over another one."""
    start, stop = _span(content, random)
    at = random.randrange(len(content) + 1)
    return content[:at] + content[start:stop] + content[at + stop - start :]


def insert_garbage(content: bytes, random: Random) -> bytes:
    at = random.randrange(len(content) + 1)
    garbage = random.choice(
        (
            random.randbytes(random.randrange(1, 40)),
            b"\xff\xfe",
            b"\xc3\x28",
            b"\xed\xa0\x80",
            b"\0",
        )
    )
    return content[:at] + garbage + content[at:]


def set_field(content: bytes, random: Random) -> bytes:
    """Write an extreme number over one, two, four or eight bytes, of either byte order."""
    size = random.choice((1, 2, 4, 4, 4, 8, 8))
    if len(content) < size:
        raise Unfit
    at = random.randrange(len(content) - size + 1)
    if random.random() < 0.7:
        at -= at % size
    # Headers stand at the beginning.
    if random.random() < 0.4:
        at = min(at % 256, len(content) - size)
    number = random.choice(EXTREMES) & ((1 << 8 * size) - 1)
    new = number.to_bytes(size, random.choice(("little", "big")))
    return content[:at] + new + content[at + size :]


BYTES: tuple[Mutator, ...] = (
    flip_bits, set_bytes, truncate, cut, duplicate, splice, insert_garbage, set_field, set_field,
)  # fmt: skip


# ---------------------------------------------------------------- text


def change_line(content: bytes, random: Random) -> bytes:
    lines = content.split(b"\n")
    i, j = random.randrange(len(lines)), random.randrange(len(lines))
    kind = random.randrange(6)
    if kind == 0:
        lines.insert(j, lines[i])
    elif kind == 1:
        del lines[i]
    elif kind == 2:
        lines[i], lines[j] = lines[j], lines[i]
    elif kind == 3:
        lines.insert(i, random.choice((b"", b"   ", b"#", b"\t\t", b",,,,,", b'"')))
    elif kind == 4:
        lines[i] += lines[j]
    else:
        lines[i] = b""
    return b"\n".join(lines)


def change_field(content: bytes, random: Random) -> bytes:
    """Replace, drop or double a field of a line, whatever separates the fields."""
    lines = content.split(b"\n")
    i = random.randrange(len(lines))
    mark = max((b"\t", b",", b" "), key=lines[i].count)
    fields = lines[i].split(mark)
    at = random.randrange(len(fields))
    kind = random.randrange(5)
    if kind == 0:
        fields[at] = random.choice(NUMBERS).encode()
    elif kind == 1:
        fields[at] = random.choice(TEXTS).encode("utf-8")
    elif kind == 2:
        del fields[at]
    elif kind == 3:
        fields.insert(at, fields[at])
    else:
        fields[at] = b'"' + fields[at]
    lines[i] = mark.join(fields)
    return b"\n".join(lines)


def recode(content: bytes, random: Random) -> bytes:
    text = content.decode("utf-8", "replace")
    kind = random.randrange(6)
    if kind == 0:
        return b"\xef\xbb\xbf" + content
    if kind == 1:
        return text.encode(random.choice(("utf-16", "utf-16-le", "utf-32", "latin-1")), "replace")
    if kind == 2:
        return content.replace(b"\n", random.choice((b"\r\n", b"\r", b"\x0b", b"\xe2\x80\xa8")))
    if kind == 3:
        return content.replace(b"\t", b" ").replace(b",", b"\t")
    if kind == 4:
        return content.replace(b" ", b"\xc2\xa0")
    return content + b"x" * random.choice((200_000, 1_100_000))


TEXT: tuple[Mutator, ...] = (change_line, change_field, change_field, recode)


# ---------------------------------------------------------------- JSON


def change_json(content: bytes, random: Random) -> bytes:
    """Replace, drop or double a value anywhere in the tree."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError) as problem:
        raise Unfit from problem
    places = list(_places(tree))
    if not places:
        raise Unfit
    deep = None
    for _ in range(random.choice((1, 1, 1, 3))):
        holder, key = random.choice(places)
        if key not in (holder if isinstance(holder, dict) else range(len(holder))):
            continue  # dropped a moment ago
        kind = random.randrange(8)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[random.choice((*holder, *TEXTS))] = holder.pop(key)
        elif kind == 2:
            deep = "@deep@"
            holder[key] = deep
        else:
            holder[key] = _value(random, holder[key])
    text = json.dumps(tree, ensure_ascii=random.random() < 0.5)
    if deep is not None:
        opening, closing = random.choice((("[", "]"), ('{"a":', "}")))
        depth = random.choice((50, 990, 5_000, 100_000))
        text = text.replace('"@deep@"', opening * depth + "1" + closing * depth)
    if random.random() < 0.1:
        text = text.replace("1", random.choice(NUMBERS[:-1]), 1)
    return text.encode("utf-8", "surrogatepass")


def _value(random: Random, old: Any) -> Any:
    return random.choice(
        (
            None, True, False, 0, -1, 1.5, 2**63, 10**400, float("nan"), float("inf"), [], {},
            [old], {"a": old}, [[]], "\ud800", str(old)[:100], [None], {"type": []},
            {"type": {"a": 1}}, random.choice(EXTREMES), random.choice(NUMBERS),
            random.choice(TEXTS),
        )
    )  # fmt: skip


def _places(tree: Any) -> Any:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in list(items):
        yield tree, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


JSON: tuple[Mutator, ...] = (change_json, change_json, change_json, change_line)


# ---------------------------------------------------------------- archives


def inside_zip(*mutators: Mutator, only: str = "") -> Mutator:
    """Make a mutator of a member of a ZIP archive, whose checksums are then right again."""

    def change(content: bytes, random: Random) -> bytes:
        members = _members(content)
        names = [name for name in members if name.endswith(only)]
        if not names:
            raise Unfit
        name = random.choice(names)
        kind = random.randrange(12)
        if kind == 0:
            del members[name]
        elif kind == 1:
            members[random.choice((name.upper(), name + ".npy", "x\x1b[2J.npy", "../../x"))] = (
                members.pop(name)
            )
        elif kind == 2:
            members[name] = members[random.choice(list(members))]
        else:
            members[name] = random.choice(mutators)(members[name], random)
        return _archive(members, random)

    return change


def _members(content: bytes) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    except Exception as problem:  # an earlier mutation may have damaged it in any way
        raise Unfit from problem


def _archive(members: dict[str, bytes], random: Random) -> bytes:
    stream = io.BytesIO()
    kind = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(stream, "w", kind) as archive:
        for name, member in members.items():
            archive.writestr(zipfile.ZipInfo(name), member, kind)
    return stream.getvalue()


DTYPES = ("<f4", "<f8", "<i8", "|u1", "|b1", "<U1", "<U99999", "|S3", "|O", "<c8", "<M8[s]", "|V0")
DTYPES += ("<f2", ">f4", "<U0", "<u8", "|V99", "<m8", "3f4", "f4,(2,2)i4", "zz", "<f16", "")
SHAPES = ((), (0,), (1,), (3, 1), (1, 1, 1), (-1,), (-1, -1), (1 << 40,), (0, 1 << 40), (1 << 63,))


def change_npy(content: bytes, random: Random) -> bytes:
    """Write another header above the numbers, or take it away."""
    if not content.startswith(b"\x93NUMPY\x01\x00") or len(content) < 12:
        raise Unfit
    (length,) = struct.unpack_from("<H", content, 8)
    body = content[10 + length :]
    kind = random.randrange(6)
    if kind == 0:
        return body  # no dtype at all
    try:
        header = eval(content[10 : 10 + length].decode(), {"__builtins__": {}})  # our own text
    except Exception as problem:
        raise Unfit from problem
    if not isinstance(header, dict):  # another change came first
        raise Unfit
    if kind in (1, 2):
        header["descr"] = random.choice(DTYPES)
    if kind in (2, 3):
        header["shape"] = random.choice(SHAPES)
        if random.random() < 0.5:
            body = body[: 8 * random.randrange(4)]
    if kind == 4:  # a scalar
        header["shape"], body = (), body[: random.choice((1, 4, 8))]
    text = repr(header)
    if kind == 5:
        text = random.choice(("(" * 200 + ")" * 200, "{}", "{'descr': 1}", "[" * 3000, text[:20]))
    raw = text.encode() + b"\n"
    version = random.choice((1, 1, 1, 2, 3, 9))
    size = struct.pack("<H" if version == 1 else "<I", len(raw))
    return b"\x93NUMPY" + bytes((version, 0)) + size + raw + body


NPZ: tuple[Mutator, ...] = (inside_zip(change_npy, change_npy, *BYTES),)


def change_text_array(content: bytes, random: Random) -> bytes:
    """Change the JSON that is the one text of an array."""
    if not content.startswith(b"\x93NUMPY\x01\x00") or len(content) < 12:
        raise Unfit
    (length,) = struct.unpack_from("<H", content, 8)
    try:
        text = content[10 + length :].decode("utf-32-le").rstrip("\0").encode()
        changed = change_json(text, random).decode("utf-8")
        body = changed.encode("utf-32-le")
    except UnicodeError as problem:
        raise Unfit from problem
    header = repr({"descr": f"<U{len(changed)}", "fortran_order": False, "shape": ()})
    raw = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(raw)) + raw + body


# ---------------------------------------------------------------- tar

_FIELDS = {"name": (0, 100), "mode": (100, 8), "size": (124, 12), "mtime": (136, 12)}
_FIELDS |= {"type": (156, 1), "link": (157, 100), "magic": (257, 8), "prefix": (345, 155)}


def change_tar(content: bytes, random: Random) -> bytes:
    """Change a field of a header, whose checksum is then right again."""
    starts = [
        at for at in range(0, len(content) - 511, 512) if content[at + 257 : at + 262] == b"ustar"
    ]
    if not starts:
        raise Unfit
    at = random.choice(starts)
    header = bytearray(content[at : at + 512])
    name = random.choice(list(_FIELDS))
    start, length = _FIELDS[name]
    if name == "type":
        new = random.choice(b"01234567xgLKSDMNV\0\xff").to_bytes(1, "big")
    elif name in ("size", "mtime", "mode") and random.random() < 0.8:
        number = random.choice((*EXTREMES, 511, 512, 513, len(content)))
        octal = f"{number:o}".encode()
        # What is too large is written in base 256, as GNU tar does; so are negative numbers.
        big = b"\x80" + number.to_bytes(length - 1, "big")[: length - 1] if length == 12 else b"7"
        new = random.choice((octal[:length], big, b"\xff" * length, b"-1", b""))
    else:
        new = random.choice((*TEXTS, *NUMBERS)).encode("utf-8", "replace")
    header[start : start + length] = new[:length].ljust(length, b"\0")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return content[:at] + bytes(header) + content[at + 512 :]


# ---------------------------------------------------------------- pickles

_OPCODES = [opcode.code.encode("latin-1") for opcode in pickletools.opcodes]


def change_pickle(content: bytes, random: Random) -> bytes:
    """Swap, drop, double or insert opcodes."""
    try:
        found = [at for _, _, at in pickletools.genops(content) if at is not None]
    except Exception as problem:
        raise Unfit from problem
    ends = [*found[1:], len(content)]
    for _ in range(random.choice((1, 1, 2, 4))):
        i = random.randrange(len(found))
        # The structure stands at both ends, what it holds between.
        if random.random() < 0.5:
            i = random.choice((i % 30, -1 - i % 30)) % len(found)
        start, stop = found[i], ends[i]
        code = random.choice(_OPCODES)
        kind = random.randrange(5)
        if kind == 0:
            content = content[:start] + code + content[start + 1 :]
        elif kind == 1:
            content = content[:start] + code + content[start:]
        elif kind == 2:
            content = content[:start] + content[stop:]
        elif kind == 3:
            content = content[:stop] + content[start:stop] + content[stop:]
        else:
            j = random.randrange(len(found))
            content = content[:start] + content[found[j] : ends[j]] + content[stop:]
    return content


PICKLE: tuple[Mutator, ...] = (change_pickle, change_pickle)


# ---------------------------------------------------------------- other binary forms


_LONG_TEXT = b"k\0\0" + zlib.compress(bytes(4 << 20), 1)


def change_png(content: bytes, random: Random) -> bytes:
    """Change a chunk, its length or its place, with a right checksum."""
    if not content.startswith(b"\x89PNG\r\n\x1a\n"):
        raise Unfit
    chunks = []
    at = 8
    while at + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, at)
        chunks.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + length]))
        at += 12 + length
    if not chunks:
        raise Unfit
    i = random.randrange(len(chunks))
    kind, body = chunks[i]
    action = random.randrange(6)
    lie = None
    if action == 0 and body:
        chunks[i] = (kind, set_field(body, random) if len(body) >= 8 else body[:-1])
    elif action == 1:
        chunks[i] = (random.choice((b"tEXt", b"zTXt", b"iCCP", b"acTL", b"PLTE", b"IEND")), body)
    elif action == 2:
        chunks[1:1] = [(b"zTXt", _LONG_TEXT)] * random.choice((1, 30))
    elif action == 3:
        lie = i
    elif action == 4:
        chunks.insert(random.randrange(len(chunks)), chunks[i])
    else:
        del chunks[i]
    parts = [content[:8]]
    for number, (name, data) in enumerate(chunks):
        length = random.choice(EXTREMES) & 0xFFFFFFFF if number == lie else len(data)
        parts.append(struct.pack(">I", length) + name + data)
        parts.append(struct.pack(">I", zlib.crc32(name + data)))
    return b"".join(parts)


def change_header(content: bytes, random: Random) -> bytes:
    """Change the JSON at the beginning of a .safetensors file, with a right length."""
    if len(content) < 8:
        raise Unfit
    (length,) = struct.unpack_from("<Q", content)
    if length > len(content) - 8:
        raise Unfit
    header = change_json(content[8 : 8 + length], random)
    return struct.pack("<Q", len(header)) + header + content[8 + length :]


def change_note(content: bytes, random: Random) -> bytes:
    """Change the JSON inside the JSON: facerec's own note in the header of a model."""
    if len(content) < 8:
        raise Unfit
    (length,) = struct.unpack_from("<Q", content)
    try:
        header = json.loads(content[8 : 8 + length])
        note = header["__metadata__"]["facerec"].encode()
    except Exception as problem:
        raise Unfit from problem
    header["__metadata__"]["facerec"] = change_json(note, random).decode("utf-8", "replace")
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + content[8 + length :]


def change_mat(content: bytes, random: Random) -> bytes:
    """Change a word of the tags in a MATLAB file of version 5, also inside its compressed part."""
    if len(content) < 136:
        raise Unfit
    head, body = content[:128], content[128:]
    kind, length = struct.unpack_from("<II", body)
    packed = kind == 15
    if packed:
        try:
            body = zlib.decompress(body[8 : 8 + length])
        except zlib.error as problem:
            raise Unfit from problem
    for _ in range(random.choice((1, 1, 2, 4))):
        at = 4 * random.randrange(max(1, len(body) // 4))
        word = random.choice((*EXTREMES[:12], *range(1, 19)))
        body = body[:at] + struct.pack("<I", word & 0xFFFFFFFF) + body[at + 4 :]
    if packed:
        body = zlib.compress(body)
        body = struct.pack("<II", 15, len(body)) + body
    return head + body


def change_onnx(content: bytes, random: Random) -> bytes:
    """Change the graph by the fields of its messages."""
    import onnx

    try:
        model = onnx.load_from_string(content)
    except Exception as problem:
        raise Unfit from problem
    messages = list(_messages(model))
    for _ in range(random.choice((1, 1, 2, 4))):
        message = random.choice(messages)
        fields = list(message.DESCRIPTOR.fields)
        if fields:
            _change_message(message, random.choice(fields), random)
    return bytes(model.SerializeToString())


def _messages(message: Any) -> Any:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if _repeated(message, field) else [value]:
                yield from _messages(inner)


def _repeated(message: Any, field: Any) -> bool:
    return not hasattr(getattr(message, field.name), "DESCRIPTOR") and field.cpp_type == 10


def _change_message(message: Any, field: Any, random: Random) -> None:
    old = getattr(message, field.name)
    number = random.choice((*EXTREMES, -1)) % (1 << 62) - random.choice((0, 0, 0, 1 << 62))
    small = number % (1 << 31) - random.choice((0, 0, 1 << 30))
    values = {1: small, 2: number, 3: small, 4: number, 5: 1e30, 6: float("nan"), 7: True, 8: 1}
    try:
        if hasattr(old, "append") or hasattr(old, "add"):  # repeated
            if len(old) and random.random() < 0.5:
                if field.cpp_type == 10:
                    old.add().CopyFrom(old[random.randrange(len(old))])
                else:
                    old[random.randrange(len(old))] = values.get(field.cpp_type, old[0])
            elif len(old):
                del old[random.randrange(len(old))]
            elif field.cpp_type != 10:
                old.extend([values.get(field.cpp_type, 1)] * random.choice((1, 70)))
        elif field.cpp_type == 9:
            text = random.choice(TEXTS)
            setattr(message, field.name, text.encode() if isinstance(old, bytes) else text)
        elif field.cpp_type == 10:
            message.ClearField(field.name)
        else:
            setattr(message, field.name, values.get(field.cpp_type, 1))
    except (TypeError, ValueError):
        message.ClearField(field.name)


# ---------------------------------------------------------------- all together


def mutate(content: bytes, random: Random, special: Sequence[Mutator]) -> bytes:
    """Return a damaged copy: one to four mutations, most often of the file's own form."""
    for _ in range(random.choice((1, 1, 1, 2, 2, 4))):
        pool = special if special and random.random() < 0.65 else BYTES
        for mutator in (random.choice(pool), truncate):
            try:
                content = mutator(content, random)
                break
            except Unfit:
                continue
    return content


def _some(content: bytes) -> bytes:
    if not content:
        raise Unfit
    return content


def _span(content: bytes, random: Random, most: int | None = None) -> tuple[int, int]:
    _some(content)
    start = random.randrange(len(content))
    limit = most or random.choice((4, 64, len(content)))
    return start, min(len(content), start + 1 + random.randrange(limit))
