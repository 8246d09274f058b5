// The LSTM as one operation per sequence, and as one operation per step.
#pragma once

#include <tuple>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace ln {

using at::Tensor;

// Parameters of one cell. Undefined tensors stand for what the variant does not have.
struct LstmParameters {
  Tensor weight_ih;       // (4H, I), gates i, f, g, o
  Tensor inner;           // (4H), added to W x before LN
  Tensor weight_hh;       // (4H, H)
  Tensor gain_x, gain_r;  // (4H), LN of W x and of U h
  Tensor bias;            // (4H), everything added after LN
  Tensor gain_c, bias_c;  // (H), LN of the cell's read-out
  double eps;
  bool per_gate;
  double clip;  // bound of the gradient of the gates' summed inputs; infinite for none
};

// x (T, B, I), h0 and c0 (B, H), lengths (B) int64 or undefined -> h of every step (T, B, H), the last h and c (B, H).
// Beyond a length h and c keep their last values. All float32, contiguous, on the CPU.
std::tuple<Tensor, Tensor, Tensor> lstm_sequence(const Tensor& x, const LstmParameters& parameters, const Tensor& h0,
                                                 const Tensor& c0, const Tensor& lengths);

// The same cell step by step: weights packed once, gradients of the parameters computed once, after all steps.
class LstmSteps {
 public:
  LstmSteps(int64_t steps, int64_t batch, const LstmParameters& parameters);
  // xs: tensors whose concatenation along axis 1 is the input (B, I).
  std::tuple<Tensor, Tensor> step(const std::vector<Tensor>& xs, const Tensor& h, const Tensor& c);

 private:
  c10::intrusive_ptr<torch::CustomClassHolder> hub_;  // what all steps share
  Tensor token_;
};

}  // namespace ln
