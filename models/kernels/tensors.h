// From tensors to plain memory, and the products outside the time loop.
#pragma once

#include <optional>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "gemm.h"
#include "pool.h"

namespace ln {

using at::Tensor;

inline const char* const second_backward =
    "a fused recurrent layer can be run backward once, for that overwrites its buffers: run it forward again (or begin a "
    "new time loop), or use kernel=reference";

// The backward passes below are not differentiable themselves; autograd enables gradients in them only if asked to.
inline void refuse_second_derivative() {
  TORCH_CHECK(!at::GradMode::is_enabled(),
              "a fused operation cannot be differentiated twice (create_graph=True); use kernel=reference");
}

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

// Gradient of U: gates (T, B, N)^T times the h before each step, h0 (B, H) and then h (T, B, H) but the last.
inline Tensor recurrent_gradient(const Tensor& gates, const Tensor& h0, const Tensor& h, int threads) {
  const int64_t B = h0.size(0), H = h0.size(1), N = gates.size(2), T = h.size(0);
  Tensor gradient = at::zeros({N, H}, h0.options());
  weight_gradient(B, N, H, data(gates), data(h0), data(gradient), threads);
  weight_gradient((T - 1) * B, N, H, data(gates) + B * N, data(h), data(gradient), threads);
  return gradient;
}

// Gradient of W: gates (T, B, N)^T x (T, B, I).
inline Tensor projection_gradient(const Tensor& gates, const Tensor& x, int threads) {
  const int64_t N = gates.size(2), I = x.size(2);
  Tensor gradient = at::zeros({N, I}, x.options());
  weight_gradient(gates.size(0) * gates.size(1), N, I, data(gates), data(x), data(gradient), threads);
  return gradient;
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
