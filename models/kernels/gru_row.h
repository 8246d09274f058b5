// One GRU step of one case, forward and backward (eq. 26-28 of the paper).
//
//   r, z = sigmoid(LN(W x) gx + LN(U h) gr + b)
//   n = tanh(LN(W x) gx + b + r (LN(U h) gr + br))              h' = (1 - z) n + z h
#pragma once

#include "rows.h"

namespace ln {

struct GruWeights {
  int64_t H;
  const float *gain_x, *gain_r, *bias;  // 3H, gates r, z, n
  const float* bias_r;                  // H, of the candidate's recurrent part
  float eps;
  Grouping<3> grouping;
};

struct GruStatistics {
  float rstd_x[3], rstd_r[3];  // 1/sigma of the projections
};
constexpr int64_t GRU_STATISTICS = sizeof(GruStatistics) / sizeof(float);

// Parts of ``Sums``.
enum GruSum { GRU_GAIN_X, GRU_GAIN_R, GRU_BIAS, GRU_BIAS_R, GRU_INNER };
inline std::vector<int64_t> gru_sums(int64_t H) { return {3 * H, 3 * H, 3 * H, H, 3 * H}; }

struct GruGates {
  Vec r, z, n, recurrent;  // recurrent: LN(U h) gr + br of the candidate
};

inline GruGates gru_gates(const GruWeights& w, const float* x, const float* r, int64_t k, int m) {
  const int64_t H = w.H;
  const auto from_x = [&](int64_t at) {
    return fma(load(x + at, m), load(w.gain_x + at, m), load(w.bias + at, m));
  };
  GruGates g;
  g.r = sigmoid(fma(load(r + k, m), load(w.gain_r + k, m), from_x(k)));
  g.z = sigmoid(fma(load(r + H + k, m), load(w.gain_r + H + k, m), from_x(H + k)));
  g.recurrent = fma(load(r + 2 * H + k, m), load(w.gain_r + 2 * H + k, m), load(w.bias_r + k, m));
  g.n = tanh(fma(g.r, g.recurrent, from_x(2 * H + k)));
  return g;
}

// x: W x, becomes LN(W x) without its gain. r: the same for U h.
inline void gru_forward_row(const GruWeights& w, float* x, float* r, const float* h_before, float* h,
                            GruStatistics& s) {
  const int64_t H = w.H;
  normalise<3>({x, w.gain_x, s.rstd_x}, w.grouping, H, w.eps);
  normalise<3>({r, w.gain_r, s.rstd_r}, w.grouping, H, w.eps);
  each_vector(H, [&](int64_t k, auto m) {
    const GruGates g = gru_gates(w, x, r, k, m);
    store(h + k, fma(g.z, load(h_before + k, m) - g.n, g.n), m);
  });
}

// dh: dLoss/dh', becomes the part of dLoss/dh that does not pass through U h. x, r: as left by the forward pass;
// become the gradients of W x and U h. scratch: 4H floats.
inline void gru_backward_row(const GruWeights& w, float* dh, float* x, float* r, const float* h_before,
                             GruStatistics& s, Sums& sums, int thread, bool inner, float* scratch) {
  const int64_t H = w.H;
  const Vec one(1.f);
  float *dz = scratch, *drecurrent = scratch + 3 * H;  // of the summed inputs, and of LN(U h) gr + br
  float *sum_bias = sums.part(thread, GRU_BIAS), *sum_bias_r = sums.part(thread, GRU_BIAS_R);
  each_vector(H, [&](int64_t k, auto m) {
    const GruGates g = gru_gates(w, x, r, k, m);
    const Vec d = load(dh + k, m), dn = d * (one - g.z) * (one - g.n * g.n);
    store(dz + k, dn * g.recurrent * g.r * (one - g.r), m);
    store(dz + H + k, d * (load(h_before + k, m) - g.n) * g.z * (one - g.z), m);
    store(dz + 2 * H + k, dn, m);
    store(drecurrent + k, dn * g.r, m);
    add(sum_bias_r + k, dn * g.r, m);
    store(dh + k, d * g.z, m);
  });
  each_vector(3 * H, [&](int64_t k, auto m) { add(sum_bias + k, load(dz + k, m), m); });
  const auto of_x = [&](int j) { return dz + j * H; };
  const auto of_r = [&](int j) { return j < 2 ? dz + j * H : drecurrent; };
  float* sum_inner = inner ? sums.part(thread, GRU_INNER) : nullptr;
  normalise_backward<3>({x, w.gain_x, s.rstd_x}, w.grouping, H, of_x, sums.part(thread, GRU_GAIN_X), sum_inner);
  normalise_backward<3>({r, w.gain_r, s.rstd_r}, w.grouping, H, of_r, sums.part(thread, GRU_GAIN_R), nullptr);
  sums.row(thread);
}

}  // namespace ln
