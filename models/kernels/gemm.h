// Products with a weight matrix that is packed once and used at every time step.
//
// A library product repacks the weights at each call, which at batch 8, or with 2400 units, costs as much as the
// product. Here W is laid out once per sequence in panels of NR vectors, K rows each, zero-filled at the end; a
// micro-kernel keeps MR x NR vectors of the result in registers while it walks down a panel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "team.h"
#include "vector.h"

namespace ln {

// 8 x 3 accumulators, 3 columns of W and one broadcast fill 28 of AVX-512's 32 registers, 4 x 3 fill 16.
constexpr int MR = WIDTH >= 16 ? 8 : 4;
constexpr int NR = 3;

struct AlignedFree {
  void operator()(float* p) const { ::operator delete[](p, std::align_val_t{64}); }
};
using AlignedFloats = std::unique_ptr<float[], AlignedFree>;

inline AlignedFloats aligned_floats(int64_t n) {
  return AlignedFloats(static_cast<float*>(::operator new[](n * sizeof(float), std::align_val_t{64})));
}

// A K x N matrix B in panels. Element (k, n) of B is source[k * row_stride + n * column_stride].
class Packed {
 public:
  Packed() = default;
  Packed(const float* source, int64_t row_stride, int64_t column_stride, int64_t K, int64_t N, int threads)
      : K_(K), N_(N) {
    // Narrower panels where the threads could not share out the wide ones evenly.
    const auto busiest = [&](int64_t nr) { return ((vectors() + nr - 1) / nr + threads - 1) / threads * nr; };
    if (threads > 1 && busiest(2) * 20 < busiest(3) * 19) nr_ = 2;
    panels_ = (vectors() + nr_ - 1) / nr_;
    data_ = aligned_floats(K * vectors() * WIDTH);
    Team(threads).run([&](int id, int n) {
      for (int64_t p = panels_ * id / n; p < panels_ * (id + 1) / n; ++p) {
        const int64_t first = p * nr_ * WIDTH, width = panel_width(p), valid = std::min(width, N - first);
        float* to = data_.get() + first * K;
        if (column_stride == 1) {
          for (int64_t k = 0; k < K; ++k, to += width) {
            std::memcpy(to, source + k * row_stride + first, valid * sizeof(float));
            std::fill(to + valid, to + width, 0.f);
          }
          continue;
        }
        // Rows of the source become columns: blocks of 16 rows k stay in the cache while a panel is filled.
        for (int64_t k0 = 0; k0 < K; k0 += 16) {
          const int64_t k1 = std::min<int64_t>(K, k0 + 16);
          for (int64_t j = 0; j < width; ++j)
            for (int64_t k = k0; k < k1; ++k)
              to[k * width + j] = j < valid ? source[k * row_stride + (first + j) * column_stride] : 0.f;
        }
      }
    });
  }

  int64_t panels() const { return panels_; }

  // C[M, N] (+)= A[M, K] B, panels [first, last) of the columns. Element (i, k) of A is A[i * lda + k], or, if
  // BLOCKED, A[(i / MR) * K * MR + k * MR + i % MR].
  template <bool BLOCKED = false>
  void product(int64_t M, const float* A, int64_t lda, float* C, int64_t ldc, int64_t first, int64_t last,
               bool accumulate = false) const {
    for (int64_t p = first; p < last; ++p) {
      const int64_t column = p * nr_ * WIDTH, width = panel_width(p);
      const float* B = data_.get() + column * K_;
      const int tail = static_cast<int>(std::min<int64_t>(WIDTH, N_ - column - (width - WIDTH)));
      switch (width / WIDTH) {
        case 3: rows<3, BLOCKED>(M, A, lda, B, C + column, ldc, tail, accumulate); break;
        case 2: rows<2, BLOCKED>(M, A, lda, B, C + column, ldc, tail, accumulate); break;
        default: rows<1, BLOCKED>(M, A, lda, B, C + column, ldc, tail, accumulate);
      }
    }
  }

 private:
  int64_t vectors() const { return (N_ + WIDTH - 1) / WIDTH; }
  int64_t panel_width(int64_t p) const { return std::min(nr_, vectors() - p * nr_) * WIDTH; }

  template <int N, bool BLOCKED>
  void rows(int64_t M, const float* A, int64_t lda, const float* B, float* C, int64_t ldc, int tail, bool acc) const {
    const int64_t step = BLOCKED ? MR * K_ : MR * lda;
    for (; M >= MR; M -= MR, A += step, C += MR * ldc) block<MR, N, BLOCKED>(A, lda, B, C, ldc, tail, acc);
    const auto rest = [&](auto m) {
      if (M < m()) return;
      block<m(), N, BLOCKED>(A, lda, B, C, ldc, tail, acc);
      M -= m(), A += BLOCKED ? m() : m() * lda, C += m() * ldc;
    };
    if constexpr (MR > 4) rest(std::integral_constant<int, 4>{});
    rest(std::integral_constant<int, 2>{});
    rest(std::integral_constant<int, 1>{});
  }

  template <int M, int N, bool BLOCKED>
  void block(const float* A, int64_t lda, const float* B, float* C, int64_t ldc, int tail, bool acc) const {
    Vec sum[M][N];
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j)
        sum[i][j] = !acc ? Vec(0.f) : j < N - 1 ? load(C + i * ldc + j * WIDTH) : load(C + i * ldc + j * WIDTH, tail);
    for (int64_t k = 0; k < K_; ++k, B += N * WIDTH) {
      Vec b[N];
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) b[j] = load(B + j * WIDTH);
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) {
        const Vec a(BLOCKED ? A[k * MR + i] : A[i * lda + k]);
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) sum[i][j] = fma(a, b[j], sum[i][j]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) {
        if (j < N - 1) store(C + i * ldc + j * WIDTH, sum[i][j]);
        else store(C + i * ldc + j * WIDTH, sum[i][j], tail);
      }
  }

  int64_t K_ = 0, N_ = 0, nr_ = NR, panels_ = 0;
  AlignedFloats data_;
};

// C[M, N] (+)= A[M, K] B on all threads, each with its own rows.
inline void product(const Packed& B, int64_t M, const float* A, int64_t lda, float* C, int64_t ldc, int threads,
                    bool accumulate = false) {
  Team(threads).run([&](int id, int n) {
    const int64_t first = M * id / n, last = M * (id + 1) / n;
    B.product(last - first, A + first * lda, lda, C + first * ldc, ldc, 0, B.panels(), accumulate);
  });
}

// Gradient of a weight matrix, once for all time steps: C[N, I] += D[K, N]^T X[K, I].
inline void weight_gradient(int64_t K, int64_t N, int64_t I, const float* D, const float* X, float* C, int threads) {
  constexpr int64_t BLOCK = 1024;  // rows of D and X at a time, so that a panel stays in the second-level cache
  const int64_t blocks = (N + MR - 1) / MR;
  const auto columns = aligned_floats(blocks * MR * std::min(K, BLOCK));
  for (int64_t k0 = 0; k0 < K; k0 += BLOCK) {
    const int64_t rows = std::min(BLOCK, K - k0);
    const Packed packed(X + k0 * I, I, 1, rows, I, threads);
    Team(threads).run([&](int id, int n) {
      const int64_t first = blocks * id / n * MR, last = std::min(N, blocks * (id + 1) / n * MR);
      if (first >= last) return;
      for (int64_t k = 0; k < rows; ++k) {
        const float* from = D + (k0 + k) * N;
        for (int64_t i = first; i < last; i += MR) {
          float* to = columns.get() + i * rows + k * MR;
          for (int64_t j = 0; j < MR; ++j) to[j] = i + j < N ? from[i + j] : 0.f;
        }
      }
      packed.product<true>(last - first, columns.get() + first * rows, 0, C + first * I, I, 0, packed.panels(), true);
    });
  }
}

}  // namespace ln
