// The LSTM step by step, for models whose next input depends on the last output (DRAW, handwriting).
//
// A step saves what its backward pass needs into buffers of all steps and returns only the gradients of its input and
// state. The gradients of the parameters are products over all steps at once: one extra node, on which every step
// depends through a token, computes them when autograd has been through all steps.
#include "lstm.h"
#include "lstm_common.h"

namespace ln {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Multiplications a step must have for its threads to be worth waking: about ten microseconds of one core.
constexpr int64_t WORTH_A_TEAM = 1 << 20;

class LstmHub : public torch::CustomClassHolder {
 public:
  // keep: whether a backward pass may follow; if not, all steps share the buffers of one.
  LstmHub(int64_t T, int64_t B, const LstmParameters& parameters, bool keep)
      : T(T), B(B), I(parameters.weight_ih.size(1)), keep(keep), p(parameters), w(weights(p)), H(w.H),
        threads(B * (I + H) * 4 * H < WORTH_A_TEAM ? 1 : at::get_num_threads()), input(data(p.weight_ih), 1, I, I, 4 * H, threads),
        recurrent(data(p.weight_hh), 1, H, H, 4 * H, threads) {
    Pool& pool = Pool::instance();
    const int64_t kept = keep ? T : 1;
    x = pool.empty({kept, B, I}), h = pool.empty({kept, B, H});
    c = pool.empty({kept, B, H}), c_after = pool.empty({kept, B, H});
    gates_x = pool.empty({kept, B, 4 * H});
    gates_r = w.gain_x ? pool.empty({kept, B, 4 * H}) : gates_x;
    s = pool.empty({kept, B, LSTM_STATISTICS});
    reached.assign(T, false);
    for (const Tensor* tensor : tensors()) versions.push_back(tensor->_version());
  }

  void forward(int64_t step, const std::vector<Tensor>& xs, const Tensor& h_before, const Tensor& c_before, Tensor& h_new,
               Tensor& c_new) {
    const int64_t N = 4 * H, t = keep ? step : 0;
    float* sums = w.gain_x ? gates_r_at(t) : gates_x_at(t);
    with_sites(w, [&](auto gates, auto cell) {
      Team(threads).run([&](int id, int n) {
        const int64_t first = B * id / n, last = B * (id + 1) / n, rows = last - first;
        float *gx = gates_x_at(t), *x_t = data(x) + t * B * I;
        int64_t column = 0;
        for (const Tensor& part : xs) {
          const int64_t width = part.size(1);
          for (int64_t b = first; b < last; ++b) std::copy_n(data(part) + b * width, width, x_t + b * I + column);
          column += width;
        }
        std::copy_n(data(h_before) + first * H, rows * H, data(h) + (t * B + first) * H);
        std::copy_n(data(c_before) + first * H, rows * H, data(c) + (t * B + first) * H);
        if (p.inner.defined())
          for (int64_t b = first; b < last; ++b) std::copy_n(data(p.inner), N, gx + b * N);
        input.product(rows, x_t + first * I, I, gx + first * N, N, 0, input.panels(), p.inner.defined());
        recurrent.product(rows, data(h_before) + first * H, H, sums + first * N, N, 0, recurrent.panels(), !gates());
        for (int64_t b = first; b < last; ++b)
          lstm_forward_row<gates(), cell()>(w, gx + b * N, gates() ? sums + b * N : nullptr, data(c_before) + b * H,
                                            data(c_new) + b * H, data(h_new) + b * H, statistics_at(t)[b]);
        std::copy_n(data(c_new) + first * H, rows * H, data(c_after) + (t * B + first) * H);
      });
    });
  }

  // dh (B, H), dc (B, H; becomes dLoss/dc of the step before) -> dx into the parts of xs, dh of the step before.
  void backward(int64_t t, const Tensor& dh, Tensor& dc, std::vector<Tensor>& dxs, Tensor& dh_before) {
    TORCH_CHECK(keep && !reached[t] && !spent, second_backward);
    unchanged();
    if (!sums) {
      sums = std::make_unique<Sums>(threads, lstm_sums(H));
      input_back = Packed(data(p.weight_ih), I, 1, 4 * H, I, threads);
      recurrent_back = Packed(data(p.weight_hh), H, 1, 4 * H, H, threads);
      scratch.assign(threads, std::vector<float>(5 * H + WIDTH));
      dx = at::empty({B, I}, at::kFloat);
    }
    reached[t] = true;
    const int64_t N = 4 * H;
    with_sites(w, [&](auto gates, auto cell) {
      Team(threads).run([&](int id, int n) {
        const int64_t first = B * id / n, last = B * (id + 1) / n, rows = last - first;
        float *gx = gates_x_at(t), *gr = gates_r_at(t);
        for (int64_t b = first; b < last; ++b)
          lstm_backward_row<gates(), cell()>(w, data(dh) + b * H, data(dc) + b * H, gx + b * N, gr + b * N,
                                             data(c) + (t * B + b) * H, data(c_after) + (t * B + b) * H,
                                             statistics_at(t)[b], *sums, id, p.inner.defined(), scratch[id].data());
        input_back.product(rows, gx + first * N, N, data(dx) + first * I, I, 0, input_back.panels());
        recurrent_back.product(rows, gr + first * N, N, data(dh_before) + first * H, H, 0, recurrent_back.panels());
        int64_t column = 0;
        for (Tensor& part : dxs) {
          const int64_t width = part.size(1);
          for (int64_t b = first; b < last; ++b) std::copy_n(data(dx) + b * I + column, width, data(part) + b * width);
          column += width;
        }
      });
    });
  }

  // Of weight_ih, inner, weight_hh, gain_x, gain_r, bias, gain_c, bias_c. Then nothing is kept any more.
  variable_list gradients() {
    TORCH_CHECK(!spent, second_backward);
    unchanged();
    spent = true;
    if (!sums) sums = std::make_unique<Sums>(threads, lstm_sums(H));
    for (int64_t t = 0; t < T; ++t)
      if (!reached[t]) {  // the loss does not depend on this step, or it was never taken
        std::fill_n(gates_x_at(t), B * 4 * H, 0.f), std::fill_n(gates_r_at(t), B * 4 * H, 0.f);
        std::fill_n(data(x) + t * B * I, B * I, 0.f), std::fill_n(data(h) + t * B * H, B * H, 0.f);
      }
    Tensor dweight_hh = at::zeros_like(p.weight_hh);
    weight_gradient(T * B, 4 * H, H, data(gates_r), data(h), data(dweight_hh), threads);
    variable_list result{projection_gradient(gates_x, x, threads), sums->gradient(INNER, p.inner), dweight_hh};
    for (Tensor& gradient : parameter_gradients(*sums, p)) result.push_back(std::move(gradient));
    for (Tensor* buffer : {&x, &h, &c, &c_after, &gates_x, &gates_r, &s, &dx}) buffer->reset();
    for (Packed* packed : {&input, &recurrent, &input_back, &recurrent_back}) *packed = Packed();
    return result;
  }

  const int64_t T, B, I;
  const bool keep;
  const LstmParameters p;
  const LstmWeights w;
  const int64_t H;
  const int threads;
  int64_t next = 0;

 private:
  std::vector<const Tensor*> tensors() const {
    std::vector<const Tensor*> defined;
    for (const Tensor* tensor : {&p.weight_ih, &p.inner, &p.weight_hh, &p.gain_x, &p.gain_r, &p.bias, &p.gain_c, &p.bias_c})
      if (tensor->defined()) defined.push_back(tensor);
    return defined;
  }

  void unchanged() const {
    const auto now = tensors();
    for (size_t i = 0; i < now.size(); ++i)
      TORCH_CHECK(now[i]->_version() == versions[i],
                  "a parameter of a fused LSTM was changed in place between its steps and their backward pass");
  }

  float* gates_x_at(int64_t t) { return data(gates_x) + t * B * 4 * H; }
  float* gates_r_at(int64_t t) { return data(gates_r) + t * B * 4 * H; }
  LstmStatistics* statistics_at(int64_t t) { return reinterpret_cast<LstmStatistics*>(data(s)) + t * B; }

  Packed input, recurrent, input_back, recurrent_back;
  Tensor x, h, c, c_after, gates_x, gates_r, s, dx;
  std::vector<bool> reached;
  std::vector<int64_t> versions;
  std::unique_ptr<Sums> sums;
  std::vector<std::vector<float>> scratch;
  bool spent = false;
};

namespace {

using Hub = c10::intrusive_ptr<LstmHub>;

Hub hub_of(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<LstmHub>(ctx->saved_data["hub"].toCapsule());
}

// Depends on the parameters; every step depends on its token.
class Parameters : public torch::autograd::Function<Parameters> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& /*weight_ih*/, const Maybe& /*inner*/,
                        const Tensor& /*weight_hh*/, const Maybe& /*gain_x*/, const Maybe& /*gain_r*/,
                        const Tensor& /*bias*/, const Maybe& /*gain_c*/, const Maybe& /*bias_c*/,
                        const Hub& hub) {
    ctx->saved_data["hub"] = c10::IValue::make_capsule(hub);
    return at::zeros({}, at::kFloat);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list&) {
    refuse_second_derivative();
    variable_list result = hub_of(ctx)->gradients();
    result.emplace_back();
    return result;
  }
};

class Step : public torch::autograd::Function<Step> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& token, const Tensor& h, const Tensor& c,
                               at::TensorList xs, const Hub& hub, int64_t t) {
    ctx->saved_data["hub"] = c10::IValue::make_capsule(hub);
    ctx->saved_data["t"] = t;
    std::vector<int64_t> widths;
    std::vector<Tensor> parts;
    for (const Tensor& x : xs) widths.push_back(x.size(1)), parts.push_back(x.contiguous());
    ctx->saved_data["widths"] = widths;
    Tensor h_new = at::empty_like(h, at::MemoryFormat::Contiguous), c_new = at::empty_like(h_new);
    hub->forward(t, parts, h.contiguous(), c.contiguous(), h_new, c_new);
    return {h_new, c_new};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    refuse_second_derivative();
    const auto hub = hub_of(ctx);
    const int64_t t = ctx->saved_data["t"].toInt();
    const Tensor like = at::empty({hub->B, hub->H}, at::kFloat);
    const Tensor dh = grads[0].defined() ? grads[0].contiguous() : at::zeros_like(like);
    Tensor dc = state_gradient(grads[1], like), dh_before = at::empty_like(like);
    std::vector<Tensor> dxs;
    for (const int64_t width : ctx->saved_data["widths"].toIntVector())
      dxs.push_back(at::empty({hub->B, width}, at::kFloat));
    hub->backward(t, dh, dc, dxs, dh_before);
    variable_list result{at::zeros({}, at::kFloat), dh_before, dc};
    result.insert(result.end(), dxs.begin(), dxs.end());
    result.emplace_back(), result.emplace_back();
    return result;
  }
};

}  // namespace

LstmSteps::LstmSteps(int64_t T, int64_t B, const LstmParameters& p) {
  LstmParameters plain = p;
  for (Tensor* tensor : {&plain.weight_ih, &plain.inner, &plain.weight_hh, &plain.gain_x, &plain.gain_r, &plain.bias,
                         &plain.gain_c, &plain.bias_c})
    if (tensor->defined()) *tensor = tensor->detach().contiguous();
  const bool keep = at::GradMode::is_enabled();
  const Hub hub = c10::make_intrusive<LstmHub>(T, B, plain, keep);
  token_ = Parameters::apply(p.weight_ih, maybe(p.inner), p.weight_hh, maybe(p.gain_x), maybe(p.gain_r), p.bias,
                             maybe(p.gain_c), maybe(p.bias_c), hub);
  hub_ = hub;
}

std::tuple<Tensor, Tensor> LstmSteps::step(const std::vector<Tensor>& xs, const Tensor& h, const Tensor& c) {
  const Hub hub = c10::static_intrusive_pointer_cast<LstmHub>(hub_);
  TORCH_CHECK(hub->keep || !at::GradMode::is_enabled(),
              "begin() was called without gradients, this step with them: call both under no_grad, or neither");
  const auto result = Step::apply(token_, h, c, at::TensorList(xs), hub, hub->next++);
  return {result[0], result[1]};
}

}  // namespace ln
