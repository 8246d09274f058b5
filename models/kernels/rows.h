// Layer normalisation of one row, forward and backward, and the sums of gradients that go with it.
#pragma once

#include <cmath>
#include <vector>

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

// Sums of parameter gradients, one set per thread, added up at the end. Each part is padded to whole vectors.
class Sums {
 public:
  Sums(int threads, std::vector<int64_t> sizes) : sizes_(std::move(sizes)) {
    for (const int64_t n : sizes_) offsets_.push_back(stride_), stride_ += (n + WIDTH - 1) / WIDTH * WIDTH;
    data_.assign(threads * stride_, 0.f);
    threads_ = threads;
  }
  float* part(int thread, int which) { return data_.data() + thread * stride_ + offsets_[which]; }
  void write(int which, float* to) const {
    for (int64_t k = 0; k < sizes_[which]; ++k) {
      to[k] = 0.f;
      for (int i = 0; i < threads_; ++i) to[k] += data_[i * stride_ + offsets_[which] + k];
    }
  }

 private:
  std::vector<int64_t> sizes_, offsets_;
  int64_t stride_ = 0;
  int threads_ = 0;
  std::vector<float> data_;
};

inline void add(float* to, Vec v, int n) { store(to, load(to, n) + v, n); }

}  // namespace ln
