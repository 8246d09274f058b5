// One LSTM step of one case (one row of the batch), forward and backward (eq. 20-22 and 31 of the paper).
//
//   z = LN(W x) gx + LN(U h) gr + b     or, without LN at the gates,  z = W x + U h + b        gates i, f, g, o
//   c' = sigmoid(f) c + sigmoid(i) tanh(g)                            h' = sigmoid(o) tanh(LN(c') gc + bc)
#pragma once

#include "rows.h"

namespace ln {

struct LstmWeights {
  int64_t H;
  const float *gain_x, *gain_r, *bias;  // 4H; the gains are null without LN at the gates
  const float *gain_c, *bias_c;         // H; null without LN of the cell
  float eps;
  Grouping<4> grouping;
  float clip;  // bound of dLoss/dz, infinite for none
};

// What the backward pass needs besides the row itself: 1/sigma of the projections, mean and 1/sigma of the cell.
struct LstmStatistics {
  float rstd_x[4], rstd_r[4], mean_c, rstd_c;
};
constexpr int64_t LSTM_STATISTICS = sizeof(LstmStatistics) / sizeof(float);

// Parts of ``Sums``.
enum LstmSum { GAIN_X, GAIN_R, BIAS, GAIN_C, BIAS_C, INNER };
inline std::vector<int64_t> lstm_sums(int64_t H) { return {4 * H, 4 * H, 4 * H, H, H, 4 * H}; }

// Gate j's summed input at units k …: from the normalised projections, or from the plain sum.
template <bool GATES>
inline Vec lstm_gate(const LstmWeights& w, const float* x, const float* r, int64_t at, int n) {
  const Vec b = load(w.bias + at, n), xv = load(x + at, n);
  if constexpr (!GATES) return xv + b;
  return fma(load(r + at, n), load(w.gain_r + at, n), fma(xv, load(w.gain_x + at, n), b));
}

// x: W x, becomes LN(W x) without its gain. r: the same for U h; not read without LN at the gates, where x is the sum.
template <bool GATES, bool CELL>
void lstm_forward_row(const LstmWeights& w, float* x, float* r, const float* c_before, float* c, float* h,
                      LstmStatistics& s) {
  const int64_t H = w.H;
  if constexpr (GATES) {
    normalise<4>({x, w.gain_x, s.rstd_x}, w.grouping, H, w.eps);
    normalise<4>({r, w.gain_r, s.rstd_r}, w.grouping, H, w.eps);
  }
  each_vector(H, [&](int64_t k, auto n) {
    const Vec i = sigmoid(lstm_gate<GATES>(w, x, r, k, n)), f = sigmoid(lstm_gate<GATES>(w, x, r, H + k, n));
    const Vec g = tanh(lstm_gate<GATES>(w, x, r, 2 * H + k, n)), o = sigmoid(lstm_gate<GATES>(w, x, r, 3 * H + k, n));
    const Vec cell = fma(f, load(c_before + k, n), i * g);
    store(c + k, cell, n);
    store(h + k, CELL ? o : o * tanh(cell), n);
  });
  if constexpr (CELL) {
    const Statistics sc = statistics(c, H, w.eps);
    s.mean_c = sc.mean, s.rstd_c = sc.rstd;
    const Vec mean(sc.mean), rstd(sc.rstd);
    each_vector(H, [&](int64_t k, auto n) {
      const Vec cell = fma((load(c + k, n) - mean) * rstd, load(w.gain_c + k, n), load(w.bias_c + k, n));
      store(h + k, load(h + k, n) * tanh(cell), n);
    });
  }
}

// dh: dLoss/dh'. dc: dLoss/dc' from later steps, becomes dLoss/dc. x, r: as left by the forward pass; become the
// gradients of W x and U h (without LN at the gates: x alone, which is both). inner: whether W x has a bias inside its
// LN. scratch: 5H floats.
template <bool GATES, bool CELL>
void lstm_backward_row(const LstmWeights& w, const float* dh, float* dc, float* x, float* r, const float* c_before,
                       const float* c, LstmStatistics& s, Sums& sums, int thread, bool inner, float* scratch) {
  const int64_t H = w.H;
  const Vec one(1.f), mean_c(s.mean_c), rstd_c(s.rstd_c), most(w.clip), least(-w.clip);
  const auto clipped = [&](Vec z) { return at::vec::clamp(z, least, most); };
  float *dz = scratch, *dread = scratch + 4 * H;
  float *sum_bias = sums.part(thread, BIAS), *sum_gain_c = sums.part(thread, GAIN_C);
  float* sum_bias_c = sums.part(thread, BIAS_C);
  Vec total(0.f), with_c(0.f);
  each_vector(H, [&](int64_t k, auto n) {
    const Vec o = sigmoid(lstm_gate<GATES>(w, x, r, 3 * H + k, n)), d = load(dh + k, n);
    Vec read = load(c + k, n), normal(0.f);
    if constexpr (CELL) {
      normal = (read - mean_c) * rstd_c;
      read = fma(normal, load(w.gain_c + k, n), load(w.bias_c + k, n));
    }
    const Vec t = tanh(read);
    store(dz + 3 * H + k, clipped(d * t * o * (one - o)), n);
    Vec back = d * o * (one - t * t);
    if constexpr (CELL) {
      add(sum_bias_c + k, back, n);
      add(sum_gain_c + k, back * normal, n);
      back = back * load(w.gain_c + k, n);
      total = total + back;
      with_c = fma(back, normal, with_c);
    }
    store(dread + k, back, n);
  });
  const Vec mean_back(CELL ? sum(total) / H : 0.f), mean_with(CELL ? sum(with_c) / H : 0.f);
  each_vector(H, [&](int64_t k, auto n) {
    Vec back = load(dread + k, n);
    if constexpr (CELL) {
      const Vec normal = (load(c + k, n) - mean_c) * rstd_c;
      back = rstd_c * (back - mean_back - normal * mean_with);
    }
    const Vec d = back + load(dc + k, n);
    const Vec i = sigmoid(lstm_gate<GATES>(w, x, r, k, n)), f = sigmoid(lstm_gate<GATES>(w, x, r, H + k, n));
    const Vec g = tanh(lstm_gate<GATES>(w, x, r, 2 * H + k, n));
    store(dz + k, clipped(d * g * i * (one - i)), n);
    store(dz + H + k, clipped(d * load(c_before + k, n) * f * (one - f)), n);
    store(dz + 2 * H + k, clipped(d * i * (one - g * g)), n);
    store(dc + k, d * f, n);
  });
  each_vector(4 * H, [&](int64_t k, auto n) { add(sum_bias + k, load(dz + k, n), n); });
  sums.row(thread);
  if constexpr (GATES) {
    const auto gradient = [&](int j) { return dz + j * H; };
    float* sum_inner = inner ? sums.part(thread, INNER) : nullptr;
    normalise_backward<4>({x, w.gain_x, s.rstd_x}, w.grouping, H, gradient, sums.part(thread, GAIN_X), sum_inner);
    normalise_backward<4>({r, w.gain_r, s.rstd_r}, w.grouping, H, gradient, sums.part(thread, GAIN_R), nullptr);
  } else {
    std::copy_n(dz, 4 * H, x);
  }
}

}  // namespace ln
