"""WGSL functions for what the built-ins get wrong, as text.

WGSL lets an implementation assume that NaN and Inf do not happen and asks little of exp, log, sin and the rest (on
lavapipe log is off by 1e4 ulp).  So every special case is decided on bits, and every transcendental is that of
worker/compiler/functions.py, printed by `function_texts.py`.  Here is the text of what they take f64 and integers of 64
bits for elsewhere: `gm_turn`, an angle without quarter turns, of large ones by N. Juffa's words of 2/pi, and
`gm_power`, which is fdlibm's.  Nothing relies on fma or on error-free additions that a fast-math compiler may remove.
Software drivers do all sides of a branch for every element, and the body of a loop at least once.  So what is rare is
short, too: the words of 2/pi are picked bit by bit of a place; and of four elements (`gm_turn4`) it is done once for
each that needs it.

Names start with `gm_`; a function may call others, `closure` finds them.  To add one: a `fn` in the text.
"""

from __future__ import annotations

import re

from .function_texts import definitions

# Lines that stand in several functions, or several times in one: each by the word that stands for it in the text.
_LINES = {
    "POW_STEPS": "\n".join(
        "  r = select(r, r * b, (n & 1u) == 1u); b = b * b; n = n >> 1u;" for _ in range(32)
    ),  # a loop would count towards the driver's cap on iterations
    "WORDS": """\
  let b = bitcast<u32>(x);
  let m = (b << 8u) | 0x80000000u;
  let e = (b >> 23u) - 126u;
  let four = (e & 128u) != 0u;
  let two = (e & 64u) != 0u;
  let one = (e & 32u) != 0u;
  let s = e & 31u;
  let f0 = select(0u, 0x7d4d3770u, four);
  let f1 = select(0x28be60dbu, 0x36d8a566u, four);
  let f2 = select(0x9391054au, 0x4f10e410u, four);
  let f3 = select(0x7f09d5f4u, 0x7f9458eau, four);
  let t2 = select(f2, 0x7d4d3770u, two);
  let t3 = select(f3, 0x36d8a566u, two);
  let t1 = select(f1, f3, two);
  let w0 = select(select(f0, f2, two), t1, one);
  let w1 = select(t1, t2, one);
  let w2 = select(t2, t3, one);""",
    "SHIFTED": """\
  let back = (32u - s) & 31u;
  let some = s != 0u;
  let hi = select(w0, (w0 << s) | (w1 >> back), some);
  let mid = select(w1, (w1 << s) | (w2 >> back), some);""",
    "NEAR_TURN": """\
  if (x <= 8192.0f) {
    let k = round(x * 0.636619772f);
    let r = ((x - k * 1.5703125f) - k * 4.837512969970703125e-4f) - k * 7.54978995489188e-8f;
    return gm_turned(r, bitcast<u32>(k + 12582912.0f));
  }""",
}

TEXT = """
var<private> gm_zero: u32 = 0u;
fn gm_bits(b: u32) -> f32 { return bitcast<f32>(b); }
fn gm_is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn gm_positive(x: f32) -> bool { let b = bitcast<u32>(x); return (b - 1u) < 0x7f800000u; }
fn gm_nonzero(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) != 0u; }
fn gm_with_sign(a: f32, s: f32) -> f32 {
  return bitcast<f32>((bitcast<u32>(a) & 0x7fffffffu) | (bitcast<u32>(s) & 0x80000000u));
}
fn gm_order(x: f32) -> i32 { let b = bitcast<i32>(x); return select(b, bitcast<i32>(0x80000000u - u32(b)), b < 0); }
fn gm_ordered(a: f32, b: f32) -> bool { return !gm_is_nan(a) && !gm_is_nan(b); }
fn gm_eq(a: f32, b: f32) -> bool { return gm_order(a) == gm_order(b) && gm_ordered(a, b); }
fn gm_lt(a: f32, b: f32) -> bool { return gm_order(a) < gm_order(b) && gm_ordered(a, b); }
fn gm_le(a: f32, b: f32) -> bool { return gm_order(a) <= gm_order(b) && gm_ordered(a, b); }
fn gm_rank(x: f32) -> u32 {
  return select(bitcast<u32>(gm_order(x)) ^ 0x80000000u, 0xffffffffu, gm_is_nan(x));
}
fn gm_max(a: f32, b: f32) -> f32 { return select(select(b, a, a > b || gm_is_nan(a)), b, gm_is_nan(b)); }
fn gm_min(a: f32, b: f32) -> f32 { return select(select(b, a, a < b || gm_is_nan(a)), b, gm_is_nan(b)); }
fn gm_sign(x: f32) -> f32 { return select(select(0.0f, gm_with_sign(1.0f, x), gm_nonzero(x)), x, gm_is_nan(x)); }
fn gm_pow2(k: i32) -> f32 { return bitcast<f32>(u32(k + 127) << 23u); }
fn gm_scale(x: f32, k: i32) -> f32 { let h = k >> 1u; return x * gm_pow2(h) * gm_pow2(k - h); }
fn gm_exp_poly(r: f32) -> f32 {
  let h = 0.00833333333f + r * (0.00138888889f + r * 0.000198412698f);
  let q = 0.5f + r * (0.166666667f + r * (0.0416666667f + r * h));
  return 1.0f + (r + r * r * q);
}
fn gm_mul_high(a: u32, b: u32) -> u32 {
  let al = a & 0xffffu; let ah = a >> 16u; let bl = b & 0xffffu; let bh = b >> 16u;
  let m = ah * bl + ((al * bl) >> 16u);
  let n = al * bh + (m & 0xffffu);
  return ah * bh + (m >> 16u) + (n >> 16u);
}
struct gm_turned { rest: f32, quarter: u32 }
struct gm_turned4 { rest: vec4<f32>, quarter: vec4<u32> }
fn gm_turn_far(x: f32) -> gm_turned {
WORDS
SHIFTED
  let high = m * hi + gm_mul_high(m, mid);
  let rest = f32(bitcast<i32>(high << 2u)) * 3.657295392e-10f;
  return gm_turned(rest, (high + 0x20000000u) >> 30u);
}
fn gm_turn_far_fine(x: f32) -> gm_turned {
WORDS
  let w3 = select(t3, select(0x7d4d3770u, 0x4f10e410u, two), one);
SHIFTED
  let lo = select(w2, (w2 << s) | (w3 >> back), some);
  let low = m * mid + gm_mul_high(m, lo);
  let carry = select(0u, 1u, low < m * mid);
  let high = m * hi + gm_mul_high(m, mid) + carry;
  let upper = (high & 0x20000000u) != 0u;
  let q = (high >> 30u) + select(0u, 1u, upper);
  let fh = high & 0x3fffffffu;
  let nl = 0u - low;
  let nh = 0x40000000u - fh - select(0u, 1u, low != 0u);
  let both = f32(select(fh, nh, upper)) + f32(select(low, nl, upper)) * 2.3283064e-10f;
  let frac = both * (1.57079633f / 1073741824.0f);
  return gm_turned(select(frac, -frac, upper), q);
}
fn gm_turn(x: f32) -> gm_turned {
NEAR_TURN
  return gm_turn_far(x);
}
fn gm_turn_fine(x: f32) -> gm_turned {
NEAR_TURN
  return gm_turn_far_fine(x);
}
fn gm_turn4(x: vec4<f32>) -> gm_turned4 {
  let k = round(x * 0.636619772f);
  var r = ((x - k * 1.5703125f) - k * 4.837512969970703125e-4f) - k * 7.54978995489188e-8f;
  var q = bitcast<vec4<u32>>(k + 12582912.0f);
  var far = x > vec4<f32>(8192.0f);
  loop {
    if (!any(far)) { break; }
    let xy = far.x || far.y;
    let one = vec4<bool>(far.x, far.y && !far.x, far.z && !xy, far.w && !(far.z || xy));
    let t = gm_turn_far(select(select(select(x.w, x.z, far.z), x.y, far.y), x.x, far.x));
    r = select(r, vec4<f32>(t.rest), one);
    q = select(q, vec4<u32>(t.quarter), one);
    far = far & !one;
  }
  return gm_turned4(r, q);
}
fn gm_high(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u); }
fn gm_power(a: f32, by: f32) -> f32 {
  let y = clamp(by, -4.0e9f, 4.0e9f);
  let b = bitcast<u32>(a);
  let tiny = b < 0x00800000u;
  let w = select(b, bitcast<u32>(f32(b)), tiny);
  let j = w & 0x007fffffu;
  let k = j > 0x1cc471u && j < 0x5db3d7u;
  let up = j >= 0x5db3d7u;
  let n = i32(w >> 23u) - select(127, 276, tiny) + select(0, 1, up);
  let ix = (j | 0x3f800000u) - select(0u, 0x00800000u, up);
  let ax = bitcast<f32>(ix);
  let bp = select(1.0f, 1.5f, k);
  let dh = select(0.0f, 0.584960938f, k);
  let dl = select(0.0f, 1.56322085e-6f, k);
  let u = ax - bp;
  let v = 1.0f / (ax + bp);
  let s = u * v;
  let sh = gm_high(s);
  let th = bitcast<f32>((((ix >> 1u) & 0xfffff000u) | 0x20000000u) + 0x00400000u + select(0u, 0x00200000u, k));
  let tl = ax - (th - bp);
  let sl = v * ((u - sh * th) - sh * tl);
  let s2 = s * s;
  let lh = 0.333333343f + s2 * (0.272728115f + s2 * (0.230660751f + s2 * 0.206975013f));
  let l = 0.6f + s2 * (0.428571433f + s2 * lh);
  let r = s2 * s2 * l + sl * (sh + s);
  let h2 = sh * sh;
  let gh = gm_high(3.0f + h2 + r);
  let gl = r - ((gh - 3.0f) - h2);
  let eu = sh * gh;
  let ev = sl * gh + gl * s;
  let ph = gm_high(eu + ev);
  let pl = ev - (ph - eu);
  let zh = 0.9619140625f * ph;
  let zl = -1.17368574e-4f * ph + pl * 0.961796701f + dl;
  let t = f32(n);
  let t1 = gm_high(((zh + zl) + dh) + t);
  let t2 = zl - (((t1 - t) - dh) - zh);
  let y1 = gm_high(y);
  let ql = (y - y1) * t1 + y * t2;
  let qh = y1 * t1;
  let z = clamp(ql + qh, -160.0f, 160.0f);
  let e = round(z);
  let f = select((qh - e) + ql, z - e, abs(z) >= 159.0f);
  return gm_scale(gm_exp_poly(f * 0.693147181f), i32(e));
}
fn gm_rem(x: f32, y: f32) -> f32 {
  let a = bitcast<u32>(x) & 0x7fffffffu;
  let b = bitcast<u32>(y) & 0x7fffffffu;
  if (a >= 0x7f800000u || b > 0x7f800000u || b == 0u) { return gm_bits(0x7fc00000u); }
  let differ = ((bitcast<u32>(x) ^ bitcast<u32>(y)) & 0x80000000u) != 0u;
  if (a == 0u) { return gm_with_sign(0.0f, y); }
  if (a < b) { return select(x, select(x + y, y, b == 0x7f800000u), differ); }
  let eb = max(b >> 23u, 1u);
  var d = max(a >> 23u, 1u) - eb;
  var m = (a & 0x007fffffu) | select(0u, 0x00800000u, a >= 0x00800000u);
  let n = (b & 0x007fffffu) | select(0u, 0x00800000u, b >= 0x00800000u);
  m = m % n;
  for (var i = 0u; i < 32u; i++) {
    let s = min(d, 8u);
    m = (m << s) % n;
    d = d - s;
  }
  if (m == 0u) { return gm_with_sign(0.0f, y); }
  let left = select(m, n - m, differ);
  return gm_with_sign(gm_scale(f32(left) * 1.1754943508222875e-38f, i32(eb) - 24), y);
}
fn gm_div_i32(a: i32, b: i32) -> i32 {
  let d = select(b, 1, b == 0 || b == -1);
  let q = a / d;
  let r = a - q * d;
  let down = r != 0 && ((r < 0) != (d < 0));
  return select(select(select(q, q - 1, down), 0 - a, b == -1), 0, b == 0);
}
fn gm_rem_i32(a: i32, b: i32) -> i32 {
  let d = select(b, 1, b == 0 || b == -1);
  let r = a - (a / d) * d;
  return select(r, r + d, r != 0 && ((r < 0) != (d < 0)));
}
fn gm_div_u32(a: u32, b: u32) -> u32 { return select(a / max(b, 1u), 0u, b == 0u); }
fn gm_rem_u32(a: u32, b: u32) -> u32 { return select(a % max(b, 1u), 0u, b == 0u); }
fn gm_pow_u32(a: u32, e: u32) -> u32 {
  var r = 1u; var b = a; var n = e;
POW_STEPS
  return r;
}
fn gm_pow_i32(a: i32, e: i32) -> i32 {
  let p = i32(gm_pow_u32(u32(a), u32(e)));
  let inverse = select(select(0, select(1, -1, (e & 1) == 1), a == -1), 1, a == 1);
  return select(p, inverse, e < 0);
}
fn gm_shl_i32(a: i32, n: i32) -> i32 { return select(0, a << (u32(n) & 31u), u32(n) < 32u); }
fn gm_shl_u32(a: u32, n: u32) -> u32 { return select(0u, a << (n & 31u), n < 32u); }
fn gm_shr_i32(a: i32, n: i32) -> i32 { return a >> min(u32(n), 31u); }
fn gm_shr_u32(a: u32, n: u32) -> u32 { return select(0u, a >> (n & 31u), n < 32u); }
fn gm_f32_to_i32(x: f32) -> i32 {
  let c = select(i32(clamp(x, -2147483648.0f, 2147483520.0f)), 2147483647, x >= 2147483648.0f);
  return select(c, 0, gm_is_nan(x));
}
fn gm_f32_to_u32(x: f32) -> u32 {
  let c = select(u32(clamp(x, 0.0f, 4294967040.0f)), 0xffffffffu, x >= 4294967296.0f);
  return select(c, 0u, gm_is_nan(x));
}
fn gm_round_f16(x: f32) -> f32 {
  let b = bitcast<u32>(x) & 0x7fffffffu;
  let small = round(bitcast<f32>(b) * 16777216.0f) * 5.9604644775390625e-8f;
  let normal = bitcast<f32>((b + 0x0fffu + ((b >> 13u) & 1u)) & 0xffffe000u);
  let large = select(normal, gm_bits(0x7f800000u), b >= 0x477ff000u);
  return select(gm_with_sign(select(large, small, b < 0x38800000u), x), x, b > 0x7f800000u);
}
fn gm_to_f16(x: f32) -> f16 { return f16(x); }
fn gm_from_f16(x: f16) -> f32 { return f32(x); }
fn gm_rotate(x: u32, n: u32) -> u32 { return (x << n) | (x >> (32u - n)); }
fn gm_mix(v: vec2<u32>, n: u32) -> vec2<u32> { let a = v.x + v.y; return vec2<u32>(a, gm_rotate(v.y, n) ^ a); }
fn gm_threefry(k0: u32, k1: u32, counter: u32) -> u32 {
  let k2 = k0 ^ k1 ^ 0x1bd11bdau;
  var v = vec2<u32>(k0, counter + k1);
  v = gm_mix(gm_mix(gm_mix(gm_mix(v, 13u), 15u), 26u), 6u) + vec2<u32>(k1, k2 + 1u);
  v = gm_mix(gm_mix(gm_mix(gm_mix(v, 17u), 29u), 16u), 24u) + vec2<u32>(k2, k0 + 2u);
  v = gm_mix(gm_mix(gm_mix(gm_mix(v, 13u), 15u), 26u), 6u) + vec2<u32>(k0, k1 + 3u);
  v = gm_mix(gm_mix(gm_mix(gm_mix(v, 17u), 29u), 16u), 24u) + vec2<u32>(k1, k2 + 4u);
  v = gm_mix(gm_mix(gm_mix(gm_mix(v, 13u), 15u), 26u), 6u) + vec2<u32>(k2, k0 + 5u);
  return v.x;
}
"""
for _word, _lines in _LINES.items():
    TEXT = TEXT.replace(_word, _lines)

_NAME = re.compile(r"\bgm_[a-z0-9_]+")


def _definitions() -> dict[str, str]:
    functions: dict[str, str] = {}
    for block in re.split(r"\n(?=fn |var<|struct )", TEXT.strip()):
        name = _NAME.search(block)
        assert name is not None
        functions[name.group()] = block
    return functions | definitions()


FUNCTIONS: dict[str, str] = _definitions()
_CALLS: dict[str, frozenset[str]] = {name: frozenset(_NAME.findall(text)) - {name} for name, text in FUNCTIONS.items()}


def closure(text: str) -> str:
    """The definitions of every polyfill `text` uses, and of those they use, in the table's order."""
    needed: set[str] = set()
    pending = set(_NAME.findall(text))
    while pending:
        name = pending.pop()
        if name in FUNCTIONS and name not in needed:
            needed.add(name)
            pending |= _CALLS[name]
    return "\n".join(body for name, body in FUNCTIONS.items() if name in needed)
