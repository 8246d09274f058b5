// The GRU over a whole sequence: one product for all W x, then the time loop, then one product per weight gradient.
#include "gru.h"

#include <torch/csrc/autograd/custom_function.h>

#include "gru_row.h"
#include "schedule.h"
#include "tensors.h"

namespace ln {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

GruWeights weights(const GruParameters& p) {
  const Grouping<3> grouping = p.per_gate ? Grouping<3>{{0, 1, 2}, 3} : Grouping<3>{{0, 0, 1}, 2};
  return {p.weight_hh.size(1), data(p.gain_x),           data(p.gain_r), data(p.bias),
          data(p.bias_r),      static_cast<float>(p.eps), grouping};
}

class Sequence : public torch::autograd::Function<Sequence> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight_ih, const Maybe& inner_G,
                               const Tensor& weight_hh, const Tensor& gain_x, const Tensor& gain_r, const Tensor& bias,
                               const Tensor& bias_r, const Tensor& h0, const Maybe& lengths_B, double eps,
                               bool per_gate) {
    const Tensor inner = value(inner_G), lengths = value(lengths_B);
    const GruWeights w = weights({weight_ih, inner, weight_hh, gain_x, gain_r, bias, bias_r, eps, per_gate});
    const int64_t T = x.size(0), B = x.size(1), H = w.H, N = 3 * H;
    const int threads = at::get_num_threads();
    Pool& pool = Pool::instance();
    Tensor gates_x = pool.empty({T, B, N}), gates_r = pool.empty({T, B, N}), s = pool.empty({T, B, GRU_STATISTICS});
    Tensor h = at::empty({T, B, H}, x.options());
    project(x, weight_ih, inner, gates_x, threads);
    const Packed recurrent(data(weight_hh), 1, H, H, N, threads);
    const auto* ends = integers(lengths);
    auto* statistics = reinterpret_cast<GruStatistics*>(data(s));
    const auto h_before = [&](int64_t t) { return t ? data(h) + (t - 1) * B * H : data(h0); };
    Schedule(threads, B, H, N).forward(T, [&](int64_t t, Share share) {
      recurrent.product(share.rows, h_before(t) + share.row * H, H, data(gates_r) + (t * B + share.row) * N, N,
                        share.panel, share.last_panel);
    }, [&](int64_t t, int64_t b) {
      const int64_t row = t * B + b;
      const float* before = h_before(t) + b * H;
      if (ends && t >= ends[b]) std::copy(before, before + H, data(h) + row * H);
      else gru_forward_row(w, data(gates_x) + row * N, data(gates_r) + row * N, before, data(h) + row * H, statistics[row]);
    }, recurrent, B);
    ctx->save_for_backward({x, weight_ih, inner, weight_hh, gain_x, gain_r, bias, bias_r, h0, lengths, h});
    ctx->saved_data["buffers"] = std::vector<Tensor>{gates_x, gates_r, s};
    ctx->saved_data["eps"] = eps, ctx->saved_data["per_gate"] = per_gate;
    return {h, h[T - 1].clone()};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    refuse_second_derivative();
    const auto saved = ctx->get_saved_variables();
    TORCH_CHECK(ctx->saved_data.count("buffers"), second_backward);
    auto buffers = ctx->saved_data["buffers"].toTensorVector();
    ctx->saved_data.erase("buffers");  // the loop below overwrites them
    const Tensor &x = saved[0], &weight_ih = saved[1], &inner = saved[2], &weight_hh = saved[3], &h0 = saved[8];
    const Tensor &lengths = saved[9], &h = saved[10];
    const GruWeights w = weights({weight_ih, inner, weight_hh, saved[4], saved[5], saved[6], saved[7],
                                  ctx->saved_data["eps"].toDouble(), ctx->saved_data["per_gate"].toBool()});
    const int64_t T = x.size(0), B = x.size(1), H = w.H, N = 3 * H;
    const int threads = at::get_num_threads();
    Tensor &gates_x = buffers[0], &gates_r = buffers[1];
    auto* statistics = reinterpret_cast<GruStatistics*>(data(buffers[2]));
    const auto* ends = integers(lengths);
    const Tensor dout = grads[0].defined() ? grads[0].contiguous() : at::zeros({T, B, H}, x.options());
    Tensor dh = state_gradient(grads[1], h0);
    Sums sums(threads, gru_sums(H));
    std::vector<std::vector<float>> scratch(threads, std::vector<float>(4 * H + WIDTH));
    {
      const Packed recurrent(data(weight_hh), H, 1, N, H, threads);
      Schedule(threads, B, H, N).backward(T, [&](int64_t t, int64_t b, int thread) {
        const int64_t row = t * B + b;
        float *carry = data(dh) + b * H, *gx = data(gates_x) + row * N, *gr = data(gates_r) + row * N;
        each_vector(H, [&](int64_t k, auto n) { add(carry + k, load(data(dout) + row * H + k, n), n); });
        if (ends && t >= ends[b]) {  // the step copied its state
          std::fill_n(gx, N, 0.f), std::fill_n(gr, N, 0.f);
          return;
        }
        const float* before = (t ? data(h) + (t - 1) * B * H : data(h0)) + b * H;
        gru_backward_row(w, carry, gx, gr, before, statistics[row], sums, thread, inner.defined(),
                         scratch[thread].data());
      }, [&](int64_t t, Share share) {
        recurrent.product(share.rows, data(gates_r) + (t * B + share.row) * N, N, data(dh) + share.row * H, H,
                          share.panel, share.last_panel, true);
      }, recurrent, B);
    }
    const Tensor dx = ctx->needs_input_grad(0) ? input_gradient(gates_x, weight_ih, threads).view_as(x) : Tensor();
    return {dx,
            ctx->needs_input_grad(1) ? projection_gradient(gates_x, x, threads) : Tensor(),
            sums.gradient(GRU_INNER, inner),
            ctx->needs_input_grad(inner.defined() ? 3 : 2) ? recurrent_gradient(gates_r, h0, h, threads) : Tensor(),
            sums.gradient(GRU_GAIN_X, saved[4]),
            sums.gradient(GRU_GAIN_R, saved[5]),
            sums.gradient(GRU_BIAS, saved[6]),
            sums.gradient(GRU_BIAS_R, saved[7]),
            dh,
            Tensor(),
            Tensor(),
            Tensor()};
  }
};

}  // namespace

std::tuple<Tensor, Tensor> gru_sequence(const Tensor& x, const GruParameters& p, const Tensor& h0,
                                        const Tensor& lengths) {
  const auto result = Sequence::apply(x, p.weight_ih, maybe(p.inner), p.weight_hh, p.gain_x, p.gain_r, p.bias, p.bias_r, h0,
                                      maybe(lengths), p.eps, p.per_gate);
  return {result[0], result[1]};
}

}  // namespace ln
