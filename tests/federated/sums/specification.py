"""The secure sum in plain Python integers, written from docs/federated-protocol.md alone.

Nothing of `blindsight` is imported; Ed25519, X25519, ML-KEM, AES and HKDF are the library's.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import struct
from dataclasses import dataclass
from itertools import combinations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

P = 2**61 - 1
HEADER = struct.Struct("<4sBBH32sQQ32s32sQ32s32sIQ")
FIRST_HOLDER = 0xFFFFFF00
OPEN, CONTRIBUTION, COLLECT, PART, RESULT = 1, 2, 3, 4, 5


def sha(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def stream(key: bytes, nonce: bytes, size: int) -> bytes:
    cipher = Cipher(algorithms.AES(key), modes.CTR(nonce.ljust(16, b"\0")))
    return cipher.encryptor().update(bytes(size))


@dataclass
class Settings:
    """The fields of a roster's settings that a round needs."""

    dimension: int
    users: int
    bits: int
    holders: int
    most: int

    @property
    def needed(self) -> int:
        return (self.holders + (self.holders - 1) // 2) // 2 + 1

    @property
    def width(self) -> int:
        return (127 * self.most).bit_length()

    @property
    def per_element(self) -> int:
        return 60 // self.width


@dataclass
class Roster:
    data: bytes
    settings: Settings
    verifiers: dict[int, bytes]
    publics: dict[int, bytes]

    @classmethod
    def read(cls, data: bytes) -> Roster:
        at = 0

        def take(size: int) -> bytes:
            nonlocal at
            at += size
            assert at <= len(data)
            return data[at - size : at]

        assert take(5) == b"BSRO\3"
        encoded = take(struct.unpack("<Q", take(8))[0])
        dimension, users, _bound, bits, holders, _c, most, _least = struct.unpack_from(
            "<QIdBBIII", encoded
        )
        settings = Settings(dimension, users, bits, holders, most)
        take(32)
        verifiers, publics, user, index = {}, {}, 0, 0
        for _ in range(struct.unpack("<I", take(4))[0]):
            start = at
            take(struct.unpack("<Q", take(8))[0])
            roles, verifier, public = take(1)[0], take(32), take(1216)
            take(struct.unpack("<Q", take(8))[0])
            signed = data[start:at]
            Ed25519PublicKey.from_public_bytes(verifier).verify(
                take(64), b"blindsight request 3" + signed
            )
            if roles & 4:
                verifiers[0] = verifier
            if roles & 1:
                user += 1
                verifiers[user] = verifier
            if roles & 2:
                index += 1
                verifiers[FIRST_HOLDER + index], publics[index] = verifier, public
        assert at == len(data)
        return cls(data, settings, verifiers, publics)

    @property
    def agreement(self) -> bytes:
        return sha(self.data)

    @property
    def fingerprint(self) -> str:
        salt = b"blindsight fingerprint 3"
        slow = hashlib.scrypt(self.agreement, salt=salt, n=2**15, r=8, p=1, maxmem=2**26, dklen=64)
        digits = str(int.from_bytes(slow, "big") % 10**30).zfill(30)
        return " ".join(digits[i : i + 5] for i in range(0, 30, 5))


@dataclass
class Message:
    kind: int
    fields: tuple
    sender: int
    body: bytes

    @classmethod
    def read(cls, data: bytes, roster: Roster) -> Message:
        magic, version, kind, zero, *fields, sender, size = HEADER.unpack_from(data)
        assert (magic, version, zero) == (b"BSFM", 3, 0) and len(data) == 204 + size + 64
        body = data[204:-64]
        key = Ed25519PublicKey.from_public_bytes(roster.verifiers[sender])
        key.verify(data[-64:], data[:204] + sha(body))
        assert fields[0] == roster.agreement
        return cls(kind, tuple(fields), sender, body)

    @property
    def length(self) -> int:
        return self.fields[2]

    @property
    def context(self) -> bytes:
        agreement, number, length, model, parent, parent_round, labels, keys = self.fields
        numbers, before = struct.pack("<QQ", number, length), struct.pack("<Q", parent_round)
        bound = agreement + numbers + model + parent + before + labels + keys
        return sha(b"blindsight round 3", bound)

    def answer(self, kind: int, sender: int, body: bytes, key: Ed25519PrivateKey) -> bytes:
        header = HEADER.pack(b"BSFM", 3, kind, 0, *self.fields, sender, len(body))
        return header + body + key.sign(header + sha(body))


def is_prime(n: int) -> bool:
    d, r = n - 1, 0
    while d % 2 == 0:
        d, r = d // 2, r + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
        x = pow(base, d, n)
        if x in (1, n - 1):
            continue
        for _ in range(r - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


@dataclass
class Pad:
    degree: int
    slots: int
    slot_bits: int
    widths: tuple[int, ...]
    primes: tuple[int, ...]

    @property
    def block(self) -> int:
        return self.slots * self.degree

    def blocks(self, length: int) -> int:
        return -(-length // self.block)

    @property
    def modulus(self) -> int:
        return math.prod(self.primes)


def choose_pad(settings: Settings, length: int) -> Pad:
    degree, cap, longest = (4096, 104, 1 << 20) if length < 1 << 20 else (8192, 207, 1 << 28)
    slot_bits = settings.bits + (settings.most - 1).bit_length()
    fitting = []
    for slots in range(1, cap // slot_bits + 1):
        exponent = 41 * math.log(2) + math.log(-(-longest // slots))
        errors = min(63 * settings.most, math.ceil(6.4 * math.sqrt(2 * settings.most * exponent)))
        for total in range(slots, cap + 1):
            count = -(-total // 30)
            short, longer = divmod(total, count)
            if short < 20:
                continue
            widths = (short + 1,) * longer + (short,) * (count - longer)
            primes: list[int] = []
            for width in widths:
                candidate = (1 << width) - 2 * degree + 1
                while not is_prime(candidate) or candidate in primes:
                    candidate -= 2 * degree
                primes.append(candidate)
            q = math.prod(primes)
            if 2 * (errors + 1) << (slots * slot_bits) <= q and q.bit_length() <= cap:
                pad = Pad(degree, slots, slot_bits, widths, tuple(primes))
                fitting.append((pad.blocks(length) * degree * total // 8, total, pad))
                break
    return min(fitting, key=lambda entry: entry[:2])[2]


def dft(values: list[int], root: int, p: int) -> list[int]:
    """Σ_k values[k] root^(i k), by halving."""
    if len(values) == 1:
        return values
    even, odd = dft(values[::2], root * root % p, p), dft(values[1::2], root * root % p, p)
    half, power, out = len(values) // 2, 1, [0] * len(values)
    for i in range(half):
        term = odd[i] * power
        out[i], out[i + half] = (even[i] + term) % p, (even[i] - term) % p
        power = power * root % p
    return out


def primitive_root(p: int, degree: int) -> int:
    for g in range(2, p):
        r = pow(g, (p - 1) // (2 * degree), p)
        if pow(r, degree, p) == p - 1:
            return r
    raise AssertionError


def reversed_bits(degree: int) -> list[int]:
    bits = degree.bit_length() - 1
    return [int(f"{i:0{bits}b}"[::-1], 2) for i in range(degree)]


def transform(values: list[int], p: int) -> list[int]:
    degree = len(values)
    r = primitive_root(p, degree)
    natural = dft([v * pow(r, k, p) % p for k, v in enumerate(values)], r * r % p, p)
    return [natural[i] for i in reversed_bits(degree)]


def transform_back(values: list[int], p: int) -> list[int]:
    degree = len(values)
    r = primitive_root(p, degree)
    natural = [values[j] for j in reversed_bits(degree)]
    twisted = dft(natural, pow(r * r % p, -1, p), p)
    scale, back = pow(degree, -1, p), pow(r, -1, p)
    return [v * scale % p * pow(back, k, p) % p for k, v in enumerate(twisted)]


def public_values(context: bytes, pad: Pad, block: int, i: int) -> list[int]:
    key, width, p = sha(b"blindsight pad a", context)[:16], pad.widths[i], pad.primes[i]
    data = stream(key, struct.pack("<IH", block, i), 8 * pad.degree)
    words = (w & ((1 << width) - 1) for (w,) in struct.iter_unpack("<I", data))
    accepted = [w for w in words if w < p]
    return accepted[: pad.degree]


def unpack_bits(data: bytes, width: int, count: int) -> list[int]:
    whole = int.from_bytes(data, "little")
    return [whole >> (i * width) & ((1 << width) - 1) for i in range(count)]


def pack_bits(values: list[int], width: int) -> bytes:
    whole = sum(v << (i * width) for i, v in enumerate(values))
    return whole.to_bytes(-(-len(values) * width // 8), "little")


def tag_of(seed: bytes, context: bytes, values: list[int], users: int = 1) -> int:
    key = sha(b"blindsight tag 3", seed, context)[:16]
    total = users * struct.unpack("<Q", stream(key, struct.pack("<I", 2**32 - 1), 8))[0]
    for chunk in range(-(-len(values) // 2**20)):
        part = values[chunk * 2**20 : (chunk + 1) * 2**20]
        words = struct.iter_unpack("<Q", stream(key, struct.pack("<I", chunk), 8 * len(part)))
        total += sum(k * v for (k,), v in zip(words, part, strict=True))
    return total % P


def interpolate(points: dict[int, int], at: int = 0) -> int:
    total = 0
    for j, y in points.items():
        top = bottom = 1
        for m in points:
            if m != j:
                top, bottom = top * (at - m) % P, bottom * (j - m) % P
        total += y * top * pow(bottom, -1, P)
    return total % P


def elements_of(seed: bytes, count: int) -> list[int]:
    words = (w & P for (w,) in struct.iter_unpack("<Q", stream(seed, b"", 8 * (count + 64))))
    return [w for w in words if w != P][:count]


def n_elements(settings: Settings, degree: int) -> int:
    return -(-degree // settings.per_element) + 1


def seal_key(shared: bytes, ct: bytes, ephemeral: bytes, receiver: bytes, bound: bytes) -> bytes:
    info = b"blindsight share 3" + sha(ct, ephemeral, receiver) + bound
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(shared)


def seal(receiver: bytes, ephemeral: X25519PrivateKey, plain: bytes, bound: bytes) -> bytes:
    public = ephemeral.public_key().public_bytes_raw()
    secret, ct = MLKEM768PublicKey.from_public_bytes(receiver[32:]).encapsulate()
    secret += ephemeral.exchange(X25519PublicKey.from_public_bytes(receiver[:32]))
    key = seal_key(secret, ct, public, receiver, bound)
    return ct + AESGCM(key).encrypt(bytes(12), plain, bound)


def unseal(private: bytes, ephemeral: bytes, sealed: bytes, bound: bytes) -> bytes:
    """`private`: X25519 private key and ML-KEM seed."""
    x = X25519PrivateKey.from_private_bytes(private[:32])
    kem = MLKEM768PrivateKey.from_seed_bytes(private[32:])
    receiver = x.public_key().public_bytes_raw() + kem.public_key().public_bytes_raw()
    secret = kem.decapsulate(sealed[:1088])
    secret += x.exchange(X25519PublicKey.from_public_bytes(ephemeral))
    key = seal_key(secret, sealed[:1088], ephemeral, receiver, bound)
    return AESGCM(key).decrypt(bytes(12), sealed[1088:], bound)


def gaussian() -> int:
    """A discrete Gaussian of deviation 6.4 on [-63, 63], by rejection."""
    while True:
        x = secrets.randbelow(127) - 63
        if secrets.randbelow(2**53) < math.exp(-x * x / (2 * 6.4**2)) * 2**53:
            return x


def contribution(
    opening: bytes,
    roster: Roster,
    user: int,
    key: Ed25519PrivateKey,
    seed: bytes,
    values: list[int],
) -> bytes:
    """A user's CONTRIBUTION; `values` are x + 2^(bits-1)."""
    message, settings = Message.read(opening, roster), roster.settings
    assert message.kind == OPEN
    context, pad = message.context, choose_pad(settings, message.length)
    assert sha(b"blindsight holder keys 3", message.body) == message.fields[7]
    publics = []
    for j in range(1, settings.holders + 1):
        part = message.body[(j - 1) * 1288 : j * 1288]
        (sequence,), public = struct.unpack("<Q", part[:8]), part[8:1224]
        if sequence:
            signed = roster.agreement + bytes([j]) + part[:8] + public
            verifier = Ed25519PublicKey.from_public_bytes(roster.verifiers[FIRST_HOLDER + j])
            verifier.verify(part[1224:], b"blindsight holder key 3" + signed)
        else:
            assert public == roster.publics[j]
        publics.append(public)
    s = [gaussian() for _ in range(pad.degree)]
    padded = []
    for k in range(pad.blocks(message.length)):
        block = values[k * pad.block : (k + 1) * pad.block]
        block += [0] * (pad.block - len(block))
        plain = [
            (gaussian() << (pad.slots * pad.slot_bits))
            + sum(block[j * pad.degree + i] << (j * pad.slot_bits) for j in range(pad.slots))
            for i in range(pad.degree)
        ]
        for i, p in enumerate(pad.primes):
            a, secret = public_values(context, pad, k, i), transform([x % p for x in s], p)
            hidden = transform([x % p for x in plain], p)
            rows = [(x * y + z) % p for x, y, z in zip(a, secret, hidden, strict=True)]
            padded.append(pack_bits(rows, pad.widths[i]))
    entries = [x + 64 for x in s]
    per, width = settings.per_element, settings.width
    elements = [
        sum(x << (i * width) for i, x in enumerate(entries[at : at + per]))
        for at in range(0, len(entries), per)
    ]
    elements.append(tag_of(seed, context, values))
    seeds = {j: secrets.token_bytes(16) for j in range(1, settings.needed)}
    drawn = {j: elements_of(x, len(elements)) for j, x in seeds.items()}
    plain_shares = dict(seeds)
    for j in range(settings.needed, settings.holders + 1):
        shares = [
            interpolate({0: element, **{m: drawn[m][i] for m in drawn}}, j)
            for i, element in enumerate(elements)
        ]
        plain_shares[j] = struct.pack(f"<{len(shares)}Q", *shares)
    ephemeral = X25519PrivateKey.generate()
    public = ephemeral.public_key().public_bytes_raw()
    sealed = [
        seal(publics[j - 1], ephemeral, plain_shares[j], context + struct.pack("<IB", user, j))
        for j in range(1, settings.holders + 1)
    ]
    digests = b"".join(sha(share) for share in sealed)
    number = struct.pack("<I", user)
    signature = key.sign(b"blindsight shares 3" + context + number + public + digests)
    body = b"".join([public, *sealed, signature, *padded])
    return message.answer(CONTRIBUTION, user, body, key)


def members_of(data: bytes, users: int) -> list[int]:
    return [u for u in range(1, users + 1) if data[(u - 1) // 8] >> ((u - 1) % 8) & 1]


def summed_shares(collect: bytes, roster: Roster, index: int, private: bytes) -> list[int]:
    """What holder `index` adds up."""
    message, settings = Message.read(collect, roster), roster.settings
    pad, size = choose_pad(settings, message.length), -(-settings.users // 8)
    count = n_elements(settings, pad.degree)
    members, at = members_of(message.body[:size], settings.users), size + 4 * settings.users
    assert sha(b"blindsight labels 3", message.body[size:at]) == message.fields[6]
    plain = 16 if index < settings.needed else 8 * count
    total = [0] * count
    for user in members:
        ephemeral, at = message.body[at : at + 32], at + 32
        digests, at = message.body[at : at + 32 * settings.holders], at + 32 * settings.holders
        signature, at = message.body[at : at + 64], at + 64
        sealed, at = message.body[at : at + 1104 + plain], at + 1104 + plain
        number = struct.pack("<I", user)
        Ed25519PublicKey.from_public_bytes(roster.verifiers[user]).verify(
            signature, b"blindsight shares 3" + message.context + number + ephemeral + digests
        )
        assert sha(sealed) == digests[32 * (index - 1) : 32 * index]
        bound = message.context + struct.pack("<IB", user, index)
        share = unseal(private, ephemeral, sealed, bound)
        values = (
            elements_of(share, count)
            if index < settings.needed
            else list(struct.unpack(f"<{count}Q", share))
        )
        total = [(x + y) % P for x, y in zip(total, values, strict=True)]
    assert at == len(message.body)
    return total


def open_sum(
    roster: Roster, contributions: list[bytes], sums: dict[int, list[int]]
) -> tuple[list[int], int]:
    """Σ v and Σ τ from all contributions of a set and t holders' summed shares."""
    settings, messages = roster.settings, [Message.read(data, roster) for data in contributions]
    message = messages[0]
    pad, users = choose_pad(settings, message.length), len(messages)
    chosen = sorted(sums)[: settings.needed]
    elements = [
        interpolate({j: sums[j][i] for j in chosen})
        for i in range(n_elements(settings, pad.degree))
    ]
    mask = (1 << settings.width) - 1
    entries = [
        element >> (i * settings.width) & mask
        for element in elements[:-1]
        for i in range(settings.per_element)
    ][: pad.degree]
    assert all(users <= x <= 127 * users for x in entries)
    secret = [x - 64 * users for x in entries]
    raw: list[int] = []
    size = pad.blocks(message.length) * sum(pad.degree * w // 8 for w in pad.widths)
    padded, at = [m.body[-size:] for m in messages], 0
    for k in range(pad.blocks(message.length)):
        residues = []
        for i, p in enumerate(pad.primes):
            part = pad.degree * pad.widths[i] // 8
            rows = [unpack_bits(x[at : at + part], pad.widths[i], pad.degree) for x in padded]
            at += part
            a, s = public_values(message.context, pad, k, i), transform([x % p for x in secret], p)
            opened = [
                (sum(column) - x * y) % p
                for column, x, y in zip(zip(*rows, strict=True), a, s, strict=True)
            ]
            residues.append(transform_back(opened, p))
        q, plain = pad.modulus, []
        for column in zip(*residues, strict=True):
            x = sum(
                r * (q // p) * pow(q // p, -1, p) for r, p in zip(column, pad.primes, strict=True)
            )
            x %= q
            x = x - q if x > q // 2 else x
            plain.append(x % (1 << (pad.slots * pad.slot_bits)))
        low = (1 << pad.slot_bits) - 1
        raw += [x >> (j * pad.slot_bits) & low for j in range(pad.slots) for x in plain]
    return raw[: message.length], elements[-1]


def accepts(result: bytes, roster: Roster, seed: bytes) -> list[int] | None:
    """The summed values, if a user accepts the RESULT."""
    message, settings = Message.read(result, roster), roster.settings
    assert message.kind == RESULT
    size, pad = -(-settings.users // 8), choose_pad(settings, message.length)
    which = sha(b"blindsight sum 3", message.context, message.body[:size])
    count, shares, at = message.body[size], {}, size + 1
    for _ in range(count):
        head, at = message.body[at : at + 105], at + 105
        verifier = Ed25519PublicKey.from_public_bytes(roster.verifiers[FIRST_HOLDER + head[0]])
        verifier.verify(head[41:], b"blindsight part 3" + which + head[:41])
        shares[head[0]] = struct.unpack("<Q", head[1:9])[0]
    raw = unpack_bits(message.body[at:], pad.slot_bits, message.length)
    users = len(members_of(message.body[:size], settings.users))
    expected = tag_of(seed, message.context, raw, users)
    subsets = combinations(sorted(shares), settings.needed)
    fits = any(interpolate({j: shares[j] for j in chosen}) == expected for chosen in subsets)
    inside = all(users <= x <= users * ((1 << settings.bits) - 1) for x in raw)
    return raw if fits and inside else None
