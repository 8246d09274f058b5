// The layer-normalised GRU as one operation per sequence.
#pragma once

#include <tuple>

#include <ATen/ATen.h>

namespace ln {

using at::Tensor;

// Parameters of one cell. Undefined tensors stand for what the variant does not have.
struct GruParameters {
  Tensor weight_ih;       // (3H, I), gates r, z, n
  Tensor inner;           // (3H), added to W x before LN
  Tensor weight_hh;       // (3H, H)
  Tensor gain_x, gain_r;  // (3H), LN of W x and of U h
  Tensor bias;            // (3H), everything added after LN, but bias_r
  Tensor bias_r;          // (H), of the candidate's recurrent part
  double eps;
  bool per_gate;
};

// x (T, B, I), h0 (B, H), lengths (B) int64 or undefined -> h of every step (T, B, H) and the last h (B, H). Beyond a
// length h keeps its last value. All float32, contiguous, on the CPU.
std::tuple<Tensor, Tensor> gru_sequence(const Tensor& x, const GruParameters& parameters, const Tensor& h0,
                                        const Tensor& lengths);

}  // namespace ln
