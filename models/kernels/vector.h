// The machine's widest vectors, through at::vec, and the functions of one vector that the cells need.
#pragma once

#include <cstdint>
#include <type_traits>

#include <ATen/cpu/vec/vec.h>

#if defined(CPU_CAPABILITY_AVX512)
#include <immintrin.h>
#endif

namespace ln {

using Vec = at::vec::Vectorized<float>;
constexpr int WIDTH = Vec::size();

inline Vec load(const float* p) { return Vec::loadu(p); }
inline Vec load(const float* p, int n) { return n == WIDTH ? Vec::loadu(p) : Vec::loadu(p, n); }
inline void store(float* p, Vec v) { v.store(p); }
inline void store(float* p, Vec v, int n) {
  if (n == WIDTH) v.store(p);
  else v.store(p, n);
}
inline Vec fma(Vec a, Vec b, Vec c) { return at::vec::fmadd(a, b, c); }

// v with its lanes from n on set to zero.
inline Vec first(Vec v, int n) { return n == WIDTH ? v : Vec::set(Vec(0.f), v, n); }

// Calls f(k, n) for k = 0, WIDTH, 2 WIDTH … below size; n is how many lanes count, a compile-time WIDTH but at the end.
template <class F>
inline __attribute__((always_inline)) void each_vector(int64_t size, const F& f) {
  int64_t k = 0;
  for (; k + WIDTH <= size; k += WIDTH) f(k, std::integral_constant<int, WIDTH>{});
  if (k < size) f(k, static_cast<int>(size - k));
}

inline float sum(Vec v) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_reduce_add_ps(v);
#else
  return at::vec::vec_reduce_all<float>([](Vec a, Vec b) { return a + b; }, v);
#endif
}

// 1 / x for a normal, positive x. A vector division costs about 16 cycles here, and a step has five per unit.
inline Vec reciprocal(Vec x) {
#if defined(CPU_CAPABILITY_AVX512)
  const Vec r = _mm512_rcp14_ps(x);  // 14 bits, then one step of Newton's
  return r * (Vec(2.f) - x * r);
#else
  return Vec(1.f) / x;
#endif
}

// x = n ln(2) + r with |r| <= ln(2)/2.
struct Reduced {
  Vec n, r;
};
inline Reduced reduced(Vec x) {
  const Vec n = (x * Vec(1.44269504089f)).round();
  return {n, fma(n, Vec(2.12194440e-4f), fma(n, Vec(-0.693359375f), x))};  // ln(2) in two parts, the first exact
}

// e^r - 1 for a reduced r, by its Taylor series; the relative error stays below 2e-7 down to r = 0.
inline Vec exponential_less_one(Vec r) {
  Vec p(1.f / 5040.f);
  p = fma(p, r, Vec(1.f / 720.f));
  p = fma(p, r, Vec(1.f / 120.f));
  p = fma(p, r, Vec(1.f / 24.f));
  p = fma(p, r, Vec(1.f / 6.f));
  p = fma(p, r, Vec(0.5f));
  return fma(p * r, r, r);
}

// x 2^n for a whole n.
inline Vec scaled(Vec x, Vec n) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_scalef_ps(x, n);
#else
  const auto power = (at::vec::convert_to_int_of_same_size(n) + at::vec::Vectorized<int32_t>(127))
                     << at::vec::Vectorized<int32_t>(23);
  return x * at::vec::cast<float, int32_t>(power);
#endif
}

// e^x for |x| <= 87; NaN stays.
inline Vec exponential(Vec x) {
  const Reduced a = reduced(x);
  return scaled(Vec(1.f) + exponential_less_one(a.r), a.n);
}

inline Vec sigmoid(Vec x) {
  // Beyond +-87 the result is 0 or 1 in float32; the clamp keeps its second operand, so a NaN stays.
  const Vec e = exponential(at::vec::clamp(x.neg(), Vec(-87.f), Vec(87.f)));
  return reciprocal(Vec(1.f) + e);
}

// (e^2x - 1) / (e^2x + 1), with the numerator as precise as x itself: 2 sigmoid(2x) - 1 would lose small values, and
// the cell of a network with small weights holds nothing else.
inline Vec tanh(Vec x) {
  const Reduced a = reduced(at::vec::clamp(x + x, Vec(-30.f), Vec(30.f)));  // 1 in float32 from 2x = 19 on
  const Vec power = scaled(Vec(1.f), a.n);
  const Vec less_one = fma(power, exponential_less_one(a.r), power - Vec(1.f));
  return less_one * reciprocal(less_one + Vec(2.f));
}

}  // namespace ln
