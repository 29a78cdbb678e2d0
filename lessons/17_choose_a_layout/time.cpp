#include "lessons/17_choose_a_layout/time.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "lessons/17_choose_a_layout/sizes.hpp"

namespace rankwise {

namespace {

constexpr double kernel_s = 5e-6;       // until the next kernel of a stream computes at its full rate
constexpr double update_tail_s = 2e-3;  // the optimizer's small kernels: norm, checks, loss scale

/// The larger of two times, rounded off where they are alike: queues of host and device never alternate perfectly.
double slower_of(double a, double b)
{
  return std::pow(std::pow(a, 6) + std::pow(b, 6), 1.0 / 6);
}

/// The times of two passes together.
StepTime operator+(StepTime a, const StepTime& b)
{
  for (const StepPart& part : step_parts()) a.*part.seconds += b.*part.seconds;
  a.hidden += b.hidden;
  return a;
}

/// The time of a pass, @p count times.
StepTime operator*(double count, StepTime pass)
{
  for (const StepPart& part : step_parts()) pass.*part.seconds *= count;
  pass.hidden *= count;
  return pass;
}

/// The model of time of one job, layout and machine. Sizes have the letters of the lessons.
class StepModel {
 public:
  StepModel(const Job& planned, const PlannedLayout& layout, const Machine& used)
      : job(planned), l(layout), machine(used)
  {
  }

  /// One step: the pipeline's passes, then the sums of gradients and the update.
  StepTime step() const
  {
    // A stage has L / p layers; the first one also has the embedding, the last one the head.
    const double m = d(l.micro_batches(job.global_batch)), p = d(l.pp), v = d(l.chunks);
    StepTime middle = d(job.model.layers) / p * layer();
    if (job.model.experts.count > 1) middle = middle + d(job.model.expert_blocks()) / p * experts();
    StepTime first = middle, last = middle;
    (p > 1 ? first : last) = middle + embedding();
    last = last + head();
    const StepTime& slowest = first.total() > last.total() ? first : last;
    const double all = p > 1 ? first.total() + last.total() + (p - 2) * middle.total() : last.total();

    // All m micro-batches pass through the slowest stage one after the other.
    StepTime step = m * slowest;
    // It waits while the other stages compute the first forward and the last backward pass, or 1 / v of them.
    step.bubble = (all - slowest.total()) / v;
    if (p > 1) step.pipeline = 2 * v * stage_message() * m + 2 * stage_message() * (p - 1);
    // Then replicas sum their gradients, and the optimizer updates the parameters.
    add_data(step, m);
    add_update(step);
    return step;
  }

  /// Forward and backward pass of one layer over one micro-batch.
  StepTime layer() const
  {
    const double H = d(job.model.heads) / t, D = C / d(job.model.heads), Q = T / c;
    const double products = product(rows, 3 * C / t, C) + product(rows, C, C / t) + product(rows, 4 * C / t, C) +
                            product(rows, C, 4 * C / t);
    const double attention = product(Q, T, D, b * H) + product(Q, D, T, b * H);
    // Bytes of one score: softmax and dropout read and write it, and a mask. The lessons' attention leaves them on chip.
    const double scores = job.system == System::rankwise ? 0 : b * H * Q * T * E / 2;
    const double s = l.sequence_parallel ? t : 1;  // norms, dropout and residuals of 1 / s of the rows

    StepTime forward, backward;
    const double core = attention + 9 * scores / rate + 2 * kernel_s;
    forward.compute = products + core + rows * C * E / 2 * (22 / s + 20 / t) / rate + 8 * kernel_s;
    forward.tensor = 2 * tensor_sum();
    backward.compute = 2 * (products + attention) + 11 * scores / rate + 2 * kernel_s +
                       (rows * C * E / 2 * (42 / s + 42 / t) + 10 * 12 * C * C / t) / rate + 14 * kernel_s;
    backward.tensor = 2 * tensor_sum() * (1 - constants.hidden_sums);
    backward.hidden = 2 * tensor_sum() * constants.hidden_sums;
    if (l.recompute == Recompute::selective) backward.recompute = core;
    add_context(forward, attention, 1);
    add_context(backward, 2 * attention, 2);
    add_host(forward, constants.host);
    add_host(backward, 2 * constants.host);
    StepTime both = forward + backward;
    if (l.recompute == Recompute::full) {
      both.recompute += forward.compute;
      both.host += forward.host, both.tensor += forward.tensor, both.context += forward.context;
    }
    return both;
  }

  /// What a layer with experts has beyond a dense one, both passes: k tokens' products in the place of one's, and four
  /// exchanges of rows among the e ranks that share the experts.
  StepTime experts() const
  {
    const double k = d(job.model.experts.per_token), e = d(l.ep);
    const double sent = k * rows * C * E * (e - 1) / e;
    const double exchange =
        e > 1 ? constants.meeting * std::log2(e) + sent / group_rate(e, t * c, constants.network_share) : 0;
    return {.compute = 3 * (k - 1) * (product(rows, 4 * C / t, C) + product(rows, C, 4 * C / t)),
            .experts = 4 * exchange};
  }

  /// Embedding, both passes.
  StepTime embedding() const
  {
    return {.compute = (26 * rows * C * E / 2 + 10 * V * C / t) / rate + 5 * kernel_s, .tensor = tensor_sum()};
  }
  /// Head and loss, both passes; logits are 32-bit.
  StepTime head() const
  {
    return {.compute = 3 * product(rows, V / t, C) + (60 * rows * V / t + 10 * V * C / t) / rate + 16 * kernel_s,
            .tensor = tensor_sum() + 3 * constants.meeting * std::log2(t)};
  }

 private:
  static double d(std::int64_t number) { return static_cast<double>(number); }

  /// A matrix product (M, K) x (K, N), @p count times: limited by the peak, and while it fills and drains its tiles by the
  /// inner length; or by memory.
  double product(double M, double N, double K, double count = 1) const
  {
    return kernel_s + std::max(2 * count * M * N * K / peak * (1 + constants.inner_length / K),
                               E * count * (M * N + M * K + N * K) / rate);
  }

  bool on_one_node() const { return d(l.gpus()) <= node; }
  /// Bytes per second of one GPU inside a node.
  double inside_rate() const { return job.slow_links ? constants.slow_node_rate : constants.node_rate; }
  /// Bytes per second of one GPU in a group of n whose neighbours are @p stride ranks apart. If some groups leave their
  /// node, those that cross share the network.
  double group_rate(double n, double stride, double network_share) const
  {
    if (on_one_node() || std::fmod(node, n * stride) == 0) return inside_rate();
    return std::min(inside_rate(), network_share * machine.network / std::min(stride, node));
  }
  /// An all-reduce of @p bytes along a ring of n GPUs.
  double sum(double bytes, double n, double stride) const
  {
    if (n <= 1) return 0;
    return constants.meeting * std::log2(n) +
           2 * (n - 1) / n * bytes / group_rate(n, stride, constants.network_share);
  }
  double tensor_sum() const { return sum(E * rows * C, t, 1); }

  /// Blocks of keys and values go around the ring of c ranks, behind the attention of the block before.
  void add_context(StepTime& pass, double attention, double passes) const
  {
    const double ring =
        passes * (c - 1) *
        (machine.network_latency + 2 * rows * C / t * E / group_rate(c, t, constants.network_share));
    pass.context = std::max(0.0, ring - attention);
    pass.hidden += ring - pass.context;
  }
  /// The device waits if the host takes longer to start the kernels than the device to run them.
  static void add_host(StepTime& pass, double host) { pass.host = slower_of(pass.total(), host) - pass.total(); }

  /// Rows of a micro-batch to the next stage. Megatron-LM sends 1 / t of them from each rank, the lessons do with sequence
  /// parallelism.
  double stage_message() const
  {
    const bool divided = job.system != System::rankwise || l.sequence_parallel;
    const double bytes = E * rows * C / (divided ? t : 1);
    return machine.network_latency +
           bytes / (on_one_node() ? inside_rate() : constants.network_share * machine.network / node);
  }

  /// Parameters of a rank of the stage that has most.
  double parameters() const
  {
    return d(std::max(parameters_of_stage(job.model, l.tp, l.pp, 0, l.ep),
                      parameters_of_stage(job.model, l.tp, l.pp, l.pp - 1, l.ep)));
  }

  /// Sums of gradients over the replicas; with ZeRO-2 and ZeRO-3 the messages of every micro-batch.
  void add_data(StepTime& step, double m) const
  {
    const double replicas = d(l.dp) * c, part = (replicas - 1) / replicas, P = parameters();
    const bool halves = job.half && (job.half_gradients || job.system == System::deepspeed);
    const double gradient = halves ? 2 : 4;
    if (l.zero >= 2) {
      // The lessons still have the last block whole when its backward pass begins.
      const double still_whole = job.system == System::rankwise ? 12 * C * C / t : 0;
      const double gathered = l.zero == 3 ? m * (2 * P - still_whole) : P;
      const double bytes = part * (E * gathered + m * gradient * P);
      const double gathers = constants.gather_share * machine.network / std::sqrt(std::min(t, node));
      double messages = bytes / (on_one_node() ? inside_rate() : std::min(inside_rate(), gathers));
      if (l.zero == 3) messages += 3 * d(job.model.layers) * m * constants.gather;
      const double exposed = std::max(messages - step.total(), 0.0) +
                             (1 - constants.hidden_gathers) * std::min(messages, step.total());
      step.data = exposed;
      step.hidden += messages - exposed;
      return;
    }
    // ZeRO-1 reduces and scatters gradients, and gathers parameters: each is half of a sum.
    const double sums = sum((l.zero == 1 ? (gradient + E) / 2 : gradient) * P, replicas, t);
    const double behind = job.system == System::rankwise ? std::min(sums, step.compute / (2 * m)) : 0;
    step.data = sums - behind;
    step.hidden += behind;
    if (l.pp > 1) step.data += sum(gradient * V * C / t, 2, t * c * d(l.dp) * d(l.pp - 1));
  }

  /// AdamW passes over 64 bytes for each parameter that this rank updates: states, gradients, copies. Off the device its
  /// states and 32-bit gradients pass through the memory of the host, and through the disk.
  void add_update(StepTime& step) const
  {
    const double updated = parameters() / (l.zero > 0 ? d(l.dp) * c : 1);
    step.update = update_tail_s / (l.zero == 3 ? d(l.dp) : 1);
    if (l.optimizer == OptimizerPlace::device) {
      step.update += 64 * updated / rate;
      return;
    }
    step.update += 2 * E * updated / machine.host_rate + 28 * updated * node / machine.host_memory_rate;
    if (l.optimizer == OptimizerPlace::disk) step.update += 2 * 12 * updated * node / machine.disk_rate;
  }

  const Job& job;
  const PlannedLayout& l;
  const Machine& machine;
  const TimeConstants& constants = machine.constants;
  const double C = d(job.model.channels), T = d(job.model.context), V = d(job.model.vocabulary);
  const double t = d(l.tp), c = d(l.cp), b = d(l.micro_batch), node = machine.gpus_per_node;
  const double rows = b * T / c;      // tokens of a micro-batch on one rank
  const double E = job.half ? 2 : 4;  // bytes of an element
  // Reached: bytes of memory and operations per second.
  const double rate = machine.memory_rate * constants.memory_share;
  const double peak = (job.half ? machine.half : machine.single) * constants.product_share;
};

}  // namespace

std::span<const StepPart> step_parts()
{
  static constexpr std::array parts{StepPart{"computation", &StepTime::compute},
                                    StepPart{"recomputation", &StepTime::recompute},
                                    StepPart{"waiting for the host", &StepTime::host},
                                    StepPart{"tensor-parallel sums", &StepTime::tensor},
                                    StepPart{"bubble", &StepTime::bubble},
                                    StepPart{"messages between stages", &StepTime::pipeline},
                                    StepPart{"messages along sequences", &StepTime::context},
                                    StepPart{"messages to experts", &StepTime::experts},
                                    StepPart{"messages between replicas", &StepTime::data},
                                    StepPart{"update", &StepTime::update}};
  return parts;
}

double StepTime::total() const
{
  double sum = 0;
  for (const StepPart& part : step_parts()) sum += this->*part.seconds;
  return sum;
}

StepTime step_time(const Job& job, const PlannedLayout& layout, const Machine& machine)
{
  return StepModel(job, layout, machine).step();
}

double layer_time(const Job& job, const PlannedLayout& layout, const Machine& machine)
{
  return StepModel(job, layout, machine).layer().total();
}

}  // namespace rankwise
