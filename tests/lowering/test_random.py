"""Random bits against a numpy Threefry, jax's, and the published known answers."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.extend.random import threefry2x32_p

from lazytpu.lowering import emit, stablehlo_text
from tests.lowering.harness import compiled, interpreted, module_of

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(key, counter):
    """Threefry-2x32, 20 rounds, of two key words and two arrays of counter words."""
    words = [np.uint32(key[0]), np.uint32(key[1])]
    words.append(words[0] ^ words[1] ^ np.uint32(0x1BD11BDA))
    with np.errstate(over="ignore"):
        x, y = (np.asarray(c, np.uint32) + k for c, k in zip(counter, words, strict=False))
        for group in range(5):
            for distance in ROTATIONS[group % 2]:
                x = x + y
                y = x ^ ((y << np.uint32(distance)) | (y >> np.uint32(32 - distance)))
            x = x + words[(group + 1) % 3]
            y = y + words[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def halves(number):
    return np.uint32(number >> 32), np.uint32(number & 0xFFFFFFFF)


def reference(seed, offset, shape):
    key = threefry(halves(seed), halves(offset))
    index = np.arange(int(np.prod(shape)), dtype=np.uint64)
    return tuple(word.reshape(shape) for word in threefry(key, ((index >> 32), index & 0xFFFFFFFF)))


def test_reference_gives_the_known_answers():
    """From kat_vectors of Random123, threefry2x32 with 20 rounds."""
    assert [int(w) for w in threefry((0, 0), (0, 0))] == [0x6B200159, 0x99BA4EFE]
    ones = 0xFFFFFFFF
    assert [int(w) for w in threefry((ones, ones), (ones, ones))] == [0x1CB996FC, 0xBB002BE7]
    assert [int(w) for w in threefry((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3))] == [0xC4923A9C, 0x483DF7A0]


def test_reference_agrees_with_jax():
    counter = np.arange(8, dtype=np.uint32)
    theirs = threefry2x32_p.bind(np.uint32(7), np.uint32(9), counter, counter + 3)
    ours = threefry((7, 9), (counter, counter + 3))
    assert all(np.array_equal(a, b) for a, b in zip(theirs, ours, strict=True))


@pytest.mark.parametrize("run", [interpreted, compiled])
@pytest.mark.parametrize("shape", [(), (7,), (3, 4, 5), (1, 6, 1), (0, 3)])
def test_random_bits(run, shape):
    seed, offset = 2**63 + 12345, (3 << 48) + 17
    narrow, wide = run(
        lambda b, s, o: [b.random_bits(s, o, shape), b.random_bits(s, o, shape, "ui64")],
        np.uint64(seed),
        np.uint64(offset),
    )
    high, low = reference(seed, offset, shape)
    np.testing.assert_array_equal(narrow, high ^ low)
    np.testing.assert_array_equal(wide, (high.astype(np.uint64) << np.uint64(32)) | low)


def test_bits_equal_jaxs_with_the_same_key():
    key = threefry(halves(5), halves(6))
    with jax.threefry_partitionable(True):
        theirs = jax.random.bits(jax.random.wrap_key_data(np.array(key), impl="threefry2x32"), (4, 5))
    (ours,) = compiled(lambda b, s, o: b.random_bits(s, o, (4, 5)), np.uint64(5), np.uint64(6))
    np.testing.assert_array_equal(ours, np.asarray(theirs))


def test_bits_do_not_depend_on_the_shape():
    flat, folded = compiled(
        lambda b, s, o: [b.random_bits(s, o, (12,)), b.random_bits(s, o, (3, 4))], np.uint64(1), np.uint64(2)
    )
    np.testing.assert_array_equal(flat.reshape(3, 4), folded)


def test_more_than_32_bits_of_index():
    module = module_of(lambda b, s, o: b.random_bits(s, o, (3, 1 << 31)), ("ui64", ()), ("ui64", ()))
    assert "stablehlo.iota dim = 0 : tensor<3x2147483648xui64>" in stablehlo_text(emit(module))


def test_one_function_for_each_shape():
    module = module_of(
        lambda b, s, o: [b.random_bits(s, o, shape) for shape in [(4,), (4,), (5,)]], ("ui64", ()), ("ui64", ())
    )
    text = stablehlo_text(emit(module))
    assert text.count("func.func private @random_bits_ui32_4(") == 1
    assert text.count("call @random_bits_ui32_4(") == 2
    assert text.count("func.func private") == 2


def test_stream_keys_do_not_depend_on_their_computation():
    """As one slice of evenly spaced numbers, from numbers and arguments in any order, or separately."""
    pack = np.array([7, 1, 2**63 + 9, 2, 11, 3, 13, 4], np.uint64)

    def evenly(b, pack, offset_argument):
        return [b.random_bits(b.number(pack, i), b.number(pack, i + 1), (3,)) for i in (0, 2, 4, 6)]

    def in_any_order(b, pack, offset_argument):
        return [
            b.random_bits(b.number(pack, 6), offset_argument, (3,)),
            b.random_bits(b.number(pack, 2), b.number(pack, 5), (3,)),
        ]

    def alone(b, pack, offset_argument):
        return b.random_bits(b.number(pack, 0), offset_argument, (3,))

    offset_argument = np.uint64(17)
    asked = [(7, 1), (2**63 + 9, 2), (11, 3), (13, 4)]
    for draw, streams in ((evenly, asked), (in_any_order, [(13, 17), (2**63 + 9, 3)]), (alone, [(7, 17)])):
        for got, (seed, offset) in zip(compiled(draw, pack, offset_argument), streams, strict=True):
            high, low = reference(seed, offset, (3,))
            np.testing.assert_array_equal(got, high ^ low)


def test_all_stream_keys_take_the_ops_of_one():
    def text(count):
        def draw(b, pack):
            return [b.random_bits(b.number(pack, 2 * i), b.number(pack, 2 * i + 1), (3,)) for i in range(count)]

        return stablehlo_text(emit(module_of(draw, ("ui64", (16,)))))

    assert text(2).count("stablehlo.xor") == text(8).count("stablehlo.xor")
    assert "@random_key(" in text(1)
    assert "@random_key(" not in text(2)
