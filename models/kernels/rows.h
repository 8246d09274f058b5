// Layer normalisation of one row, forward and backward, and the sums of gradients that go with it.
#pragma once

#include <cmath>
#include <vector>

#include <ATen/ATen.h>

#include "vector.h"

namespace ln {

struct Statistics {
  float mean, rstd;  // rstd = 1 / sqrt(variance + eps)
};

// Two passes: E[x^2] - mean^2 would cancel, and the row is in the cache.
inline Statistics statistics(const float* x, int64_t n, float eps) {
  Vec total(0.f);
  each_vector(n, [&](int64_t k, auto m) { total = total + load(x + k, m); });
  const float mean = sum(total) / n;
  Vec squares(0.f);
  each_vector(n, [&](int64_t k, auto m) {
    const Vec d = first(load(x + k, m) - Vec(mean), m);
    squares = fma(d, d, squares);
  });
  return {mean, 1.f / std::sqrt(sum(squares) / n + eps)};
}

// How the gates of a row are normalised together: gate j belongs to group[j], groups are neighbours.
template <int GATES>
struct Grouping {
  int group[GATES];
  int count;

  // Statistics of every gate's group.
  void row_statistics(const float* x, int64_t H, float eps, Statistics* of_gate) const {
    for (int j = 0; j < GATES;) {
      int end = j + 1;
      while (end < GATES && group[end] == group[j]) ++end;
      const Statistics s = statistics(x + j * H, (end - j) * H, eps);
      for (; j < end; ++j) of_gate[j] = s;
    }
  }

  // Turns sums over each gate into means over its group.
  void means(float* of_gate, int64_t H) const {
    for (int j = 0; j < GATES;) {
      int end = j;
      float total = 0.f;
      while (end < GATES && group[end] == group[j]) total += of_gate[end++];
      total /= static_cast<float>((end - j) * H);
      for (; j < end; ++j) of_gate[j] = total;
    }
  }
};

// Sums of parameter gradients, one set per thread, added up at the end. Each part is padded to whole vectors. A set is
// emptied into a second one every few rows: a running float32 sum over all of T x B rows would lose digits.
class Sums {
 public:
  Sums(int threads, std::vector<int64_t> sizes) : sizes_(std::move(sizes)), rows_(threads * 16) {
    for (const int64_t n : sizes_) offsets_.push_back(stride_), stride_ += (n + WIDTH - 1) / WIDTH * WIDTH;
    recent_.assign(threads * stride_, 0.f), earlier_ = recent_;
    threads_ = threads;
  }

  float* part(int thread, int which) { return recent_.data() + thread * stride_ + offsets_[which]; }

  // To be called once a row.
  void row(int thread) {
    if (++rows_[thread * 16] < ROWS) return;  // counters 64 bytes apart: no two threads share a cache line
    rows_[thread * 16] = 0;
    empty(thread);
  }

  // Their total as the gradient of ``parameter``; undefined if that is.
  at::Tensor gradient(int which, const at::Tensor& parameter) {
    if (!parameter.defined()) return at::Tensor();
    at::Tensor result = at::zeros_like(parameter);
    float* to = result.data_ptr<float>();
    for (int i = 0; i < threads_; ++i) {
      empty(i);
      for (int64_t k = 0; k < sizes_[which]; ++k) to[k] += earlier_[i * stride_ + offsets_[which] + k];
    }
    return result;
  }

 private:
  static constexpr int ROWS = 128;

  void empty(int thread) {
    float *from = recent_.data() + thread * stride_, *to = earlier_.data() + thread * stride_;
    each_vector(stride_, [&](int64_t k, auto n) {
      store(to + k, load(to + k, n) + load(from + k, n), n);
      store(from + k, Vec(0.f), n);
    });
  }

  std::vector<int64_t> sizes_, offsets_;
  int64_t stride_ = 0;
  int threads_ = 0;
  std::vector<int> rows_;
  std::vector<float> recent_, earlier_;
};

inline void add(float* to, Vec v, int n) { store(to, load(to, n) + v, n); }

// The gains, saved values and sums of one projection (W x, or U h) of one row, for its LN.
template <int GATES>
struct Projection {
  float* row;         // the summed inputs; then normalised, without gain; then their gradient
  const float* gain;  // of all gates
  float* rstd;        // one per gate
};

// Normalises a projection in place.
template <int GATES>
void normalise(const Projection<GATES>& p, const Grouping<GATES>& grouping, int64_t H, float eps) {
  Statistics s[GATES];
  grouping.row_statistics(p.row, H, eps, s);
  for (int j = 0; j < GATES; ++j) {
    p.rstd[j] = s[j].rstd;
    const Vec mean(s[j].mean), rstd(s[j].rstd);
    each_vector(H, [&](int64_t k, auto n) {
      float* at = p.row + j * H + k;
      store(at, (load(at, n) - mean) * rstd, n);
    });
  }
}

// Backward through the gain and the normalisation. d(j): gradient of gate j's normalised, scaled input. Adds the gain's
// gradient to sum_gain, and what it finds to sum_inner unless that is null.
template <int GATES, class Gradient>
void normalise_backward(const Projection<GATES>& p, const Grouping<GATES>& grouping, int64_t H, const Gradient& d,
                        float* sum_gain, float* sum_inner) {
  float mean[GATES], along[GATES];
  for (int j = 0; j < GATES; ++j) {
    const float* dj = d(j);
    Vec total(0.f), with_row(0.f);
    each_vector(H, [&](int64_t k, auto n) {
      const int64_t at = j * H + k;
      const Vec z = load(dj + k, n), x = load(p.row + at, n), dx = z * load(p.gain + at, n);
      add(sum_gain + at, z * x, n);
      total = total + dx, with_row = fma(dx, x, with_row);
    });
    mean[j] = sum(total), along[j] = sum(with_row);
  }
  grouping.means(mean, H), grouping.means(along, H);
  for (int j = 0; j < GATES; ++j) {
    const float* dj = d(j);
    const Vec m(mean[j]), a(along[j]), rstd(p.rstd[j]);
    each_vector(H, [&](int64_t k, auto n) {
      const int64_t at = j * H + k;
      const Vec dx = rstd * (load(dj + k, n) * load(p.gain + at, n) - m - load(p.row + at, n) * a);
      store(p.row + at, dx, n);
      if (sum_inner) add(sum_inner + at, dx, n);
    });
  }
}

}  // namespace ln
