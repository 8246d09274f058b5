// From tensors to plain memory, and the products outside the time loop.
#pragma once

#include <optional>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "gemm.h"
#include "pool.h"

namespace ln {

using at::Tensor;

inline const char* const second_backward =
    "a fused recurrent layer can be run backward once: its buffers are overwritten; use kernel=reference for more";

// Autograd functions take what may be absent as an optional; inside, an undefined tensor says the same.
using Maybe = std::optional<Tensor>;
inline Tensor value(const Maybe& t) { return t.value_or(Tensor()); }
inline Maybe maybe(const Tensor& t) { return t.defined() ? Maybe(t) : std::nullopt; }

inline float* data(const Tensor& t) { return t.defined() ? t.data_ptr<float>() : nullptr; }
inline const int64_t* integers(const Tensor& t) { return t.defined() ? t.data_ptr<int64_t>() : nullptr; }

inline Tensor state_gradient(const Tensor& given, const Tensor& like) {
  return given.defined() ? given.clone(at::MemoryFormat::Contiguous) : at::zeros_like(like);
}

// out (rows, N) = x (rows, I) weight (N, I)^T + bias.
inline void project(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor& out, int threads) {
  const int64_t N = weight.size(0), I = weight.size(1), rows = x.numel() / I;
  if (bias.defined()) {
    float* to = data(out);
    at::parallel_for(0, rows, 64, [&](int64_t from, int64_t end) {
      for (int64_t k = from; k < end; ++k) std::copy_n(data(bias), N, to + k * N);
    });
  }
  const Packed packed(data(weight), 1, I, I, N, threads);
  product(packed, rows, data(x), I, data(out), N, threads, bias.defined());
}

// (rows, I) = gradient (rows, N) weight (N, I).
inline Tensor input_gradient(const Tensor& gradient, const Tensor& weight, int threads) {
  const int64_t N = weight.size(0), I = weight.size(1), rows = gradient.numel() / N;
  Tensor dx = at::empty({rows, I}, weight.options());
  const Packed packed(data(weight), I, 1, N, I, threads);
  product(packed, rows, data(gradient), N, data(dx), I, threads);
  return dx;
}

}  // namespace ln
