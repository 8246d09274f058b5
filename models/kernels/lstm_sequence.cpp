// The LSTM over a whole sequence: one product for all W x, then the time loop, then one product per weight gradient.
#include "lstm.h"
#include "lstm_common.h"
#include "schedule.h"

namespace ln {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <bool GATES, bool CELL>
void forward_loop(const LstmWeights& w, const Schedule& plan, const Packed& recurrent, int64_t T, int64_t B, float* x,
                  float* r, const float* h0, const float* c0, float* h, float* c, LstmStatistics* s,
                  const int64_t* lengths) {
  const int64_t H = w.H;
  // Without LN at the gates U h is added to W x at once.
  float* sums = GATES ? r : x;
  plan.forward(T, [&](int64_t t, Share share) {
    recurrent.product(share.rows, (t ? h + (t - 1) * B * H : h0) + share.row * H, H,
                      sums + (t * B + share.row) * 4 * H, 4 * H, share.panel, share.last_panel, !GATES);
  }, [&](int64_t t, int64_t b) {
    const int64_t row = t * B + b;
    const float* c_before = t ? c + (row - B) * H : c0 + b * H;
    if (lengths && t >= lengths[b]) {
      const float* h_before = t ? h + (row - B) * H : h0 + b * H;
      std::copy(h_before, h_before + H, h + row * H);
      std::copy(c_before, c_before + H, c + row * H);
      return;
    }
    lstm_forward_row<GATES, CELL>(w, x + row * 4 * H, GATES ? r + row * 4 * H : nullptr, c_before, c + row * H,
                                  h + row * H, s[row]);
  }, recurrent, B);
}

// dh, dc: gradients of the last h and c, become those of h0 and c0.
template <bool GATES, bool CELL>
void backward_loop(const LstmWeights& w, const Schedule& plan, const Packed& recurrent, int64_t T, int64_t B, float* x,
                   float* r, const float* c0, const float* c, LstmStatistics* s, const int64_t* lengths,
                   const float* dout, float* dh, float* dc, Sums& sums, bool inner) {
  const int64_t H = w.H;
  float* gates = GATES ? r : x;
  std::vector<std::vector<float>> scratch(plan.threads(), std::vector<float>(6 * H + WIDTH));
  plan.backward(T, [&](int64_t t, int64_t b, int thread) {
    const int64_t row = t * B + b;
    float *carry = dh + b * H, *total = scratch[thread].data() + 5 * H;
    each_vector(H, [&](int64_t k, auto n) { store(total + k, load(carry + k, n) + load(dout + row * H + k, n), n); });
    if (lengths && t >= lengths[b]) {
      std::copy(total, total + H, carry);  // the step copied its state
      std::fill_n(x + row * 4 * H, 4 * H, 0.f);
      if (GATES) std::fill_n(r + row * 4 * H, 4 * H, 0.f);
      return;
    }
    std::fill_n(carry, H, 0.f);
    lstm_backward_row<GATES, CELL>(w, total, dc + b * H, x + row * 4 * H, GATES ? r + row * 4 * H : nullptr,
                                   t ? c + (row - B) * H : c0 + b * H, c + row * H, s[row], sums, thread, inner,
                                   scratch[thread].data());
  }, [&](int64_t t, Share share) {
    recurrent.product(share.rows, gates + (t * B + share.row) * 4 * H, 4 * H, dh + share.row * H, H, share.panel,
                      share.last_panel, true);
  }, recurrent, B);
}

class Sequence : public torch::autograd::Function<Sequence> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight_ih, const Maybe& inner,
                               const Tensor& weight_hh, const Maybe& gain_x, const Maybe& gain_r, const Tensor& bias,
                               const Maybe& gain_c, const Maybe& bias_c, const Tensor& h0, const Tensor& c0,
                               const Maybe& lengths_B, double eps, bool per_gate, double clip) {
    const LstmParameters p{weight_ih, value(inner),  weight_hh,     value(gain_x), value(gain_r), bias,
                           value(gain_c), value(bias_c), eps,       per_gate,      clip};
    const Tensor lengths = value(lengths_B);
    const LstmWeights w = weights(p);
    const int64_t T = x.size(0), B = x.size(1), H = w.H;
    const int threads = at::get_num_threads();
    Pool& pool = Pool::instance();
    Tensor gates_x = pool.empty({T, B, 4 * H}), gates_r = w.gain_x ? pool.empty({T, B, 4 * H}) : Tensor();
    Tensor h = at::empty({T, B, H}, x.options()), c = pool.empty({T, B, H});
    Tensor s = pool.empty({T, B, LSTM_STATISTICS});
    project(x, weight_ih, p.inner, gates_x, threads);
    const Packed recurrent(data(weight_hh), 1, H, H, 4 * H, threads);
    const Schedule plan(threads, B, H, 4 * H);
    with_sites(w, [&](auto gates, auto cell) {
      forward_loop<gates(), cell()>(w, plan, recurrent, T, B, data(gates_x), data(gates_r), data(h0), data(c0), data(h),
                                    data(c), reinterpret_cast<LstmStatistics*>(data(s)), integers(lengths));
    });
    ctx->save_for_backward(
        {x, weight_ih, p.inner, weight_hh, p.gain_x, p.gain_r, bias, p.gain_c, p.bias_c, h0, c0, lengths, h});
    ctx->saved_data["buffers"] = std::vector<Tensor>{gates_x, gates_r.defined() ? gates_r : at::empty({0}), c, s};
    ctx->saved_data["eps"] = eps, ctx->saved_data["per_gate"] = per_gate, ctx->saved_data["clip"] = clip;
    return {h, h[T - 1].clone(), c[T - 1].clone()};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    refuse_second_derivative();
    const auto saved = ctx->get_saved_variables();
    TORCH_CHECK(ctx->saved_data.count("buffers"), second_backward);
    auto buffers = ctx->saved_data["buffers"].toTensorVector();
    ctx->saved_data.erase("buffers");  // the loop below overwrites them
    const Tensor &x = saved[0], &weight_ih = saved[1], &weight_hh = saved[3], &h0 = saved[9], &c0 = saved[10];
    const Tensor &lengths = saved[11], &h = saved[12];
    const LstmParameters p{weight_ih, saved[2], weight_hh, saved[4], saved[5], saved[6], saved[7], saved[8],
                           ctx->saved_data["eps"].toDouble(), ctx->saved_data["per_gate"].toBool(),
                           ctx->saved_data["clip"].toDouble()};
    const LstmWeights w = weights(p);
    const int64_t T = x.size(0), B = x.size(1), H = w.H;
    const int threads = at::get_num_threads();
    Tensor &gates_x = buffers[0], &gates_r = w.gain_x ? buffers[1] : buffers[0], &c = buffers[2];
    const Tensor dout = grads[0].defined() ? grads[0].contiguous() : at::zeros({T, B, H}, x.options());
    Tensor dh = state_gradient(grads[1], h0), dc = state_gradient(grads[2], c0);
    const Schedule plan(threads, B, H, 4 * H);
    Sums sums(plan.threads(), lstm_sums(H));
    {
      const Packed recurrent(data(weight_hh), H, 1, 4 * H, H, threads);
      with_sites(w, [&](auto gates, auto cell) {
        backward_loop<gates(), cell()>(w, plan, recurrent, T, B, data(gates_x), data(gates_r), data(c0), data(c),
                                       reinterpret_cast<LstmStatistics*>(data(buffers[3])), integers(lengths),
                                       data(dout), data(dh), data(dc), sums, p.inner.defined());
      });
    }
    const Tensor dx = ctx->needs_input_grad(0) ? input_gradient(gates_x, weight_ih, threads).view_as(x) : Tensor();
    variable_list result{
        dx,
        ctx->needs_input_grad(1) ? projection_gradient(gates_x, x, threads) : Tensor(),
        sums.gradient(INNER, p.inner),
        ctx->needs_input_grad(p.inner.defined() ? 3 : 2) ? recurrent_gradient(gates_r, h0, h, threads) : Tensor()};
    for (Tensor& gradient : parameter_gradients(sums, p)) result.push_back(std::move(gradient));
    result.insert(result.end(), {dh, dc, Tensor(), Tensor(), Tensor(), Tensor()});
    return result;
  }
};

}  // namespace

std::tuple<Tensor, Tensor, Tensor> lstm_sequence(const Tensor& x, const LstmParameters& p, const Tensor& h0,
                                                 const Tensor& c0, const Tensor& lengths) {
  const auto result = Sequence::apply(x, p.weight_ih, maybe(p.inner), p.weight_hh, maybe(p.gain_x), maybe(p.gain_r),
                                      p.bias, maybe(p.gain_c), maybe(p.bias_c), h0, c0, maybe(lengths), p.eps,
                                      p.per_gate, p.clip);
  return {result[0], result[1], result[2]};
}

}  // namespace ln
