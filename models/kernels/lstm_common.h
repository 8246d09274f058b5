// What the sequence and the step form of the LSTM share.
#pragma once

#include <type_traits>
#include <vector>

#include "lstm.h"
#include "lstm_row.h"
#include "tensors.h"

namespace ln {

inline LstmWeights weights(const LstmParameters& p) {
  LstmWeights w;
  w.H = p.weight_hh.size(1);
  w.gain_x = data(p.gain_x), w.gain_r = data(p.gain_r), w.bias = data(p.bias);
  w.gain_c = data(p.gain_c), w.bias_c = data(p.bias_c);
  w.eps = static_cast<float>(p.eps);
  w.clip = static_cast<float>(p.clip);
  w.grouping = p.per_gate ? Grouping<4>{{0, 1, 2, 3}, 4} : Grouping<4>{{0, 0, 0, 0}, 1};
  return w;
}

// Calls f with two compile-time booleans: LN at the gates, LN of the cell.
template <class F>
void with_sites(const LstmWeights& w, const F& f) {
  using Yes = std::true_type;
  using No = std::false_type;
  if (w.gain_x && w.gain_c) f(Yes{}, Yes{});
  else if (w.gain_x) f(Yes{}, No{});
  else if (w.gain_c) f(No{}, Yes{});
  else f(No{}, No{});
}

// Gradients of gain_x, gain_r, bias, gain_c, bias_c; undefined where the parameter is.
inline std::vector<Tensor> parameter_gradients(Sums& sums, const LstmParameters& p) {
  return {sums.gradient(GAIN_X, p.gain_x), sums.gradient(GAIN_R, p.gain_r), sums.gradient(BIAS, p.bias),
          sums.gradient(GAIN_C, p.gain_c), sums.gradient(BIAS_C, p.bias_c)};
}

}  // namespace ln
