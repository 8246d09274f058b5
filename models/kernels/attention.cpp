// DRAW's window: the filters are computed anew in the backward pass, so only its five numbers are kept for it.
#include "attention.h"

#include <cmath>
#include <vector>

#include <torch/csrc/autograd/custom_function.h>

#include "team.h"
#include "tensors.h"
#include "vector.h"

namespace ln {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Filters of one image along one axis: N rows of A pixels, each row padded to whole vectors with zeros.
class Axis {
 public:
  Axis(int64_t filters, int64_t pixels)
      : N(filters), A(pixels), stride((pixels + WIDTH - 1) / WIDTH * WIDTH), filter(N * stride), gradient(N * stride),
        pixel(stride), mean(N), norm(N) {
    for (int64_t a = 0; a < A; ++a) pixel[a] = static_cast<float>(a);
  }

  void set(float centre, float step, float variance, const WindowGrid& grid) {
    variance_ = variance;
    for (int64_t i = 0; i < N; ++i) {
      mean[i] = centre + step * offset(i, grid);
      Vec total(0.f);
      each_vector(A, [&](int64_t a, auto n) {
        const Vec d = load(&pixel[a], n) - Vec(mean[i]);
        const Vec power = at::vec::clamp_min(d * d * Vec(-0.5f / variance), Vec(-87.f));
        const Vec weight = first(exponential(power), n);
        total = total + weight;
        store(row(i) + a, weight);
      });
      norm[i] = 1.f / (sum(total) + static_cast<float>(grid.row_sum_eps));
      each_vector(A, [&](int64_t a, auto) { store(row(i) + a, load(row(i) + a) * Vec(norm[i])); });
    }
  }

  // From ``gradient``, the loss' derivatives by the filters, to those by centre, log stride and log variance.
  void back(float step, const WindowGrid& grid, float& centre, float& log_step, float& log_variance) const {
    for (int64_t i = 0; i < N; ++i) {
      Vec shared(0.f);
      each_vector(A, [&](int64_t a, auto) { shared = fma(load(grad(i) + a), load(row(i) + a), shared); });
      const Vec common(sum(shared));
      Vec by_mean(0.f), by_variance(0.f);
      each_vector(A, [&](int64_t a, auto) {
        // filter = weight norm, so dL/dweight weight = (dL/dfilter - common) filter
        const Vec g = (load(grad(i) + a) - common) * load(row(i) + a), d = load(&pixel[a]) - Vec(mean[i]);
        by_mean = fma(g, d, by_mean);
        by_variance = fma(g * d, d, by_variance);
      });
      const float by_mean_i = sum(by_mean) / variance_;
      centre += by_mean_i;
      log_step += by_mean_i * step * offset(i, grid);
      log_variance += 0.5f * sum(by_variance) / variance_;
    }
  }

  float* row(int64_t i) { return &filter[i * stride]; }
  const float* row(int64_t i) const { return &filter[i * stride]; }
  float* grad(int64_t i) { return &gradient[i * stride]; }
  const float* grad(int64_t i) const { return &gradient[i * stride]; }

  const int64_t N, A, stride;

 private:
  float offset(int64_t i, const WindowGrid& grid) const {
    return static_cast<float>((static_cast<double>(i) - (N - 1) / 2.0) * grid.spacing);
  }
  std::vector<float> filter, gradient, pixel, mean, norm;
  float variance_ = 1.f;
};

// The filterbank of one image, and room for what its products need.
struct Bank {
  Bank(int64_t filters, int64_t pixels)
      : rows(filters, pixels), columns(filters, pixels), patch(2 * filters * filters), left(2 * filters * rows.stride),
        right(2 * filters * rows.stride), picture(pixels * rows.stride) {}

  void set(const float* window, const WindowGrid& grid) {
    step = std::exp(window[2]), gamma = std::exp(window[4]);
    const float variance = std::exp(window[3]), slope = grid.slope, origin = grid.origin;
    rows.set(slope * window[0] + origin, step, variance, grid);
    columns.set(slope * window[1] + origin, step, variance, grid);
  }

  void back(const WindowGrid& grid, float by_log_gamma, float* dwindow) const {
    float y = 0.f, x = 0.f, log_step = 0.f, log_variance = 0.f;
    rows.back(step, grid, y, log_step, log_variance);
    columns.back(step, grid, x, log_step, log_variance);
    dwindow[0] = y * grid.slope, dwindow[1] = x * grid.slope;
    dwindow[2] = log_step, dwindow[3] = log_variance, dwindow[4] = by_log_gamma;
  }

  Axis rows, columns;
  std::vector<float> patch, left, right, picture;
  float step = 1.f, gamma = 1.f;
};

// out (N, A) = F_y M; M (A, A) with rows ``pitch`` apart.
void filter_rows(const Axis& F, const float* M, int64_t pitch, float* out) {
  each_vector(F.A, [&](int64_t c, auto n) {
    for (int64_t i = 0; i < F.N; ++i) {
      Vec total(0.f);
      for (int64_t a = 0; a < F.A; ++a) total = fma(Vec(F.row(i)[a]), load(M + a * pitch + c, n), total);
      store(out + i * F.stride + c, total);
    }
  });
}

// Dot product of two padded rows of A pixels.
float dot(const Axis& F, const float* x, const float* y) {
  Vec total(0.f);
  each_vector(F.A, [&](int64_t a, auto) { total = fma(load(x + a), load(y + a), total); });
  return sum(total);
}

// out (N, A) = P F with P (N, N), its rows ``pitch`` apart.
void spread(const Axis& F, const float* P, int64_t pitch, float* out) {
  for (int64_t i = 0; i < F.N; ++i)
    each_vector(F.A, [&](int64_t a, auto) {
      Vec total(0.f);
      for (int64_t j = 0; j < F.N; ++j) total = fma(Vec(P[i * pitch + j]), load(F.row(j) + a), total);
      store(out + i * F.stride + a, total);
    });
}

// image - sigmoid(canvas), with padded rows.
void error_image(const float* image, const float* canvas, int64_t A, int64_t stride, float* error) {
  for (int64_t a = 0; a < A; ++a)
    each_vector(A, [&](int64_t c, auto n) {
      const int64_t at = a * A + c;
      store(error + a * stride + c, first(load(image + at, n) - sigmoid(load(canvas + at, n)), n));
    });
}

// Runs work(bank, b) for every image, each thread with a bank of its own.
template <class Work>
void each_image(int64_t B, int64_t filters, int64_t A, const Work& work) {
  Team(at::get_num_threads()).run([&](int id, int n) {
    Bank bank(filters, A);
    for (int64_t b = B * id / n; b < B * (id + 1) / n; ++b) work(bank, b);
  });
}

class Read : public torch::autograd::Function<Read> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& window, const Tensor& image, const Tensor& canvas,
                        const WindowGrid* given) {
    const WindowGrid grid = *given;
    const int64_t B = image.size(0), A = image.size(1), N = grid.filters;
    Tensor out = at::empty({B, 2 * N * N}, image.options());
    each_image(B, N, A, [&](Bank& bank, int64_t b) {
      bank.set(data(window) + b * 5, grid);
      const int64_t stride = bank.rows.stride;
      filter_rows(bank.rows, data(image) + b * A * A, A, bank.left.data());
      error_image(data(image) + b * A * A, data(canvas) + b * A * A, A, stride, bank.picture.data());
      filter_rows(bank.rows, bank.picture.data(), stride, bank.left.data() + N * stride);
      float* to = data(out) + b * 2 * N * N;
      for (int64_t i = 0; i < N; ++i)
        for (int64_t which = 0; which < 2; ++which)
          for (int64_t j = 0; j < N; ++j)
            *to++ = bank.gamma * dot(bank.columns, &bank.left[(which * N + i) * stride], bank.columns.row(j));
    });
    ctx->save_for_backward({window, image, canvas, out});
    save(ctx, grid);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    refuse_second_derivative();
    const auto saved = ctx->get_saved_variables();
    const Tensor &window = saved[0], &image = saved[1], &canvas = saved[2], &out = saved[3];
    const WindowGrid grid = saved_grid(ctx);
    const int64_t B = image.size(0), A = image.size(1), N = grid.filters;
    const Tensor dout = grads[0].contiguous();
    Tensor dwindow = at::empty_like(window), dcanvas = at::empty_like(canvas);
    each_image(B, N, A, [&](Bank& bank, int64_t b) {
      bank.set(data(window) + b * 5, grid);
      const int64_t stride = bank.rows.stride, size = 2 * N * N;
      const float *image_b = data(image) + b * A * A, *d = data(dout) + b * size;
      float by_log_gamma = 0.f;
      for (int64_t k = 0; k < size; ++k) {
        by_log_gamma += d[k] * data(out)[b * size + k];
        bank.patch[k] = bank.gamma * d[k];
      }
      float* error = bank.picture.data();
      error_image(image_b, data(canvas) + b * A * A, A, stride, error);
      // left: F_y of image and error; right: dP F_x of both
      float *left = bank.left.data(), *right = bank.right.data(), *left_error = left + N * stride;
      float* right_error = right + N * stride;
      filter_rows(bank.rows, image_b, A, left);
      filter_rows(bank.rows, error, stride, left_error);
      spread(bank.columns, bank.patch.data(), 2 * N, right);
      spread(bank.columns, bank.patch.data() + N, 2 * N, right_error);
      for (int64_t j = 0; j < N; ++j)
        each_vector(A, [&](int64_t a, auto) {
          Vec total(0.f);
          for (int64_t i = 0; i < N; ++i) {
            total = fma(Vec(bank.patch[i * 2 * N + j]), load(left + i * stride + a), total);
            total = fma(Vec(bank.patch[i * 2 * N + N + j]), load(left_error + i * stride + a), total);
          }
          store(bank.columns.grad(j) + a, total);
        });
      float* dcanvas_b = data(dcanvas) + b * A * A;
      for (int64_t a = 0; a < A; ++a) {
        for (int64_t i = 0; i < N; ++i) {
          Vec total(0.f);
          each_vector(A, [&](int64_t c, auto n) {
            total = fma(load(image_b + a * A + c, n), load(right + i * stride + c), total);
            total = fma(load(error + a * stride + c), load(right_error + i * stride + c), total);
          });
          bank.rows.grad(i)[a] = sum(total);
        }
        each_vector(A, [&](int64_t c, auto n) {
          Vec total(0.f);
          for (int64_t i = 0; i < N; ++i)
            total = fma(Vec(bank.rows.row(i)[a]), load(right_error + i * stride + c), total);
          // error = image - sigmoid(canvas)
          const Vec s = load(image_b + a * A + c, n) - load(error + a * stride + c);
          store(dcanvas_b + a * A + c, total.neg() * s * (Vec(1.f) - s), n);
        });
      }
      bank.back(grid, by_log_gamma, data(dwindow) + b * 5);
    });
    return {dwindow, Tensor(), dcanvas, Tensor()};
  }

  static void save(AutogradContext* ctx, const WindowGrid& grid) {
    ctx->saved_data["grid"] = std::vector<double>{
        static_cast<double>(grid.filters), static_cast<double>(grid.pixels), grid.slope, grid.origin, grid.spacing,
        grid.row_sum_eps};
  }
  static WindowGrid saved_grid(AutogradContext* ctx) {
    const auto g = ctx->saved_data["grid"].toDoubleVector();
    return {static_cast<int64_t>(g[0]), static_cast<int64_t>(g[1]), g[2], g[3], g[4], g[5]};
  }
};

class Write : public torch::autograd::Function<Write> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& window, const Tensor& canvas, const Tensor& patch,
                        const WindowGrid* given) {
    const WindowGrid grid = *given;
    const int64_t B = canvas.size(0), A = canvas.size(1), N = grid.filters;
    Tensor out = at::empty_like(canvas);
    each_image(B, N, A, [&](Bank& bank, int64_t b) {
      bank.set(data(window) + b * 5, grid);
      const int64_t stride = bank.rows.stride;
      for (int64_t k = 0; k < N * N; ++k) bank.patch[k] = data(patch)[b * N * N + k] / bank.gamma;
      spread(bank.columns, bank.patch.data(), N, bank.right.data());
      for (int64_t a = 0; a < A; ++a)
        each_vector(A, [&](int64_t c, auto n) {
          const int64_t at = (b * A + a) * A + c;
          Vec total = load(data(canvas) + at, n);
          for (int64_t i = 0; i < N; ++i)
            total = fma(Vec(bank.rows.row(i)[a]), load(bank.right.data() + i * stride + c), total);
          store(data(out) + at, total, n);
        });
    });
    ctx->save_for_backward({window, patch});
    Read::save(ctx, grid);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    refuse_second_derivative();
    const auto saved = ctx->get_saved_variables();
    const Tensor &window = saved[0], &patch = saved[1], dcanvas = grads[0].contiguous();
    const WindowGrid grid = Read::saved_grid(ctx);
    const int64_t B = dcanvas.size(0), A = dcanvas.size(1), N = grid.filters;
    Tensor dwindow = at::empty_like(window), dpatch = at::empty_like(patch);
    each_image(B, N, A, [&](Bank& bank, int64_t b) {
      bank.set(data(window) + b * 5, grid);
      const int64_t stride = bank.rows.stride;
      const float* d = data(dcanvas) + b * A * A;
      for (int64_t k = 0; k < N * N; ++k) bank.patch[k] = data(patch)[b * N * N + k] / bank.gamma;
      float *left = bank.left.data(), *right = bank.right.data();
      filter_rows(bank.rows, d, A, left);                              // F_y dC
      spread(bank.columns, bank.patch.data(), N, right);        // P F_x
      float by_log_gamma = 0.f;
      for (int64_t i = 0; i < N; ++i)
        for (int64_t j = 0; j < N; ++j) {
          const float q = dot(bank.columns, left + i * stride, bank.columns.row(j));
          data(dpatch)[(b * N + i) * N + j] = q / bank.gamma;
          by_log_gamma -= q * bank.patch[i * N + j];
        }
      for (int64_t j = 0; j < N; ++j)
        each_vector(A, [&](int64_t a, auto) {
          Vec total(0.f);
          for (int64_t i = 0; i < N; ++i) total = fma(Vec(bank.patch[i * N + j]), load(left + i * stride + a), total);
          store(bank.columns.grad(j) + a, total);
        });
      for (int64_t a = 0; a < A; ++a)
        for (int64_t i = 0; i < N; ++i) {
          Vec total(0.f);
          each_vector(A, [&](int64_t c, auto n) {
            total = fma(load(d + a * A + c, n), load(right + i * stride + c), total);
          });
          bank.rows.grad(i)[a] = sum(total);
        }
      bank.back(grid, by_log_gamma, data(dwindow) + b * 5);
    });
    return {dwindow, dcanvas, dpatch, Tensor()};
  }
};

void check(const char* name, const Tensor& given, at::IntArrayRef sizes) {
  TORCH_CHECK_VALUE(given.sizes() == sizes && given.scalar_type() == at::kFloat && given.is_cpu(), name, " of shape ",
                    given.sizes(), " must be ", sizes, ", float32 on the CPU");
}

}  // namespace

Tensor window_read(const Tensor& window, const Tensor& image, const Tensor& canvas, const WindowGrid& grid) {
  const int64_t B = canvas.size(0), A = grid.pixels;
  check("window", window, {B, 5}), check("image", image, {B, A, A}), check("canvas", canvas, {B, A, A});
  return Read::apply(window.contiguous(), image.contiguous(), canvas.contiguous(), &grid);
}

Tensor window_write(const Tensor& window, const Tensor& canvas, const Tensor& patch, const WindowGrid& grid) {
  const int64_t B = canvas.size(0), A = grid.pixels;
  check("window", window, {B, 5}), check("canvas", canvas, {B, A, A});
  check("patch", patch, {B, grid.filters * grid.filters});
  return Write::apply(window.contiguous(), canvas.contiguous(), patch.contiguous(), &grid);
}

}  // namespace ln
