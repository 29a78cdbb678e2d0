#include "gpt2/experts/expert_layer.hpp"

#include <numeric>

namespace rankwise {

namespace {

/// Rows @p rows of a tensor with @p columns columns.
Tensor rows_of(const Tensor& tensor, Range rows, std::int64_t columns)
{
  return tensor.slice({rows.first * columns, rows.count * columns});
}

/// Calls @p use(expert, its rows, number of the chunk) for each of the experts here that has rows of one source.
template <class Use>
void for_each_chunk(const ExpertRows& rows, std::int64_t source, Use&& use)
{
  Range chunk{0, 0};
  for (std::int64_t r = 0; r < source; ++r) chunk.first += rows.from(r);
  for (std::int64_t e = 0; e < rows.experts; ++e) {
    const std::int64_t number = source * rows.experts + e;
    chunk = {chunk.end(), rows.counts[static_cast<std::size_t>(number)]};
    if (chunk.count > 0) use(static_cast<std::size_t>(e), chunk, number);
  }
}

/// Fills a small tensor of the device with values of the host.
template <class T>
void fill(Stream& stream, const Tensor& to, std::vector<T> values)
{
  stream.copy(to.slice({0, std::ssize(values)}), Tensor(std::span(values), {std::ssize(values)}));
  stream.synchronise();
}

}  // namespace

ExpertRows::ExpertRows(std::vector<std::int64_t> received, std::int64_t experts_here, std::int64_t leaves_of_source)
    : experts(experts_here), leaves(leaves_of_source), ends(std::move(received))
{
  for (auto first = ends.begin(); first != ends.end(); first += leaves) {
    std::partial_sum(first, first + leaves, first);
    counts.push_back(*(first + leaves - 1));
  }
}

std::int64_t ExpertRows::from(std::int64_t source) const
{
  const auto first = counts.begin() + source * experts;
  return std::accumulate(first, first + experts, std::int64_t{0});
}

std::int64_t ExpertRows::all() const
{
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

SumOrder ExpertLayer::over_hidden() const
{
  return SumOrder::split(hidden_channels(), leaves_of(context_.part));
}

RoutingShape ExpertLayer::shape(const MicroBatch& batch) const
{
  return {batch.rows.sequences.count, batch.rows.tokens.count, context_.config.experts};
}

void ExpertLayer::route(const Workspace::Experts& work, const BranchActivations& a, const Tensor& router,
                        const MicroBatch& batch) const
{
  const std::int64_t R = batch.rows.count(), C = context_.config.channels;
  context_.kernels->matmul(Matrix::of(work.logits, R), Matrix::of(a.normalised, R), Matrix::of(router, C),
                           SumOrder::sequential(C));
  context_.kernels->route(a.routed.probabilities, a.routed.choices, a.routed.weights, work.logits);
}

RoutingPlan ExpertLayer::plan(const RoutedActivations& a, const MicroBatch& batch) const
{
  Stream& stream = *context_.stream;
  const std::vector<std::int32_t> choices = to_host<std::int32_t>(stream, a.choices);
  RoutingPlan plan = plan_routing(choices, shape(batch));
  keep(a, plan, auxiliary_pull(plan, shape(batch)));
  return plan;
}

void ExpertLayer::keep(const RoutedActivations& a, const RoutingPlan& plan, const std::vector<double>& pull) const
{
  Stream& stream = *context_.stream;
  fill(stream, a.places, plan.places);
  fill(stream, a.sent_leaves, plan.leaves);
  with_real_type(a.pull.type(),
                 [&]<class T>(T) { fill(stream, a.pull, std::vector<Accumulator<T>>(pull.begin(), pull.end())); });
}

ExpertRows ExpertLayer::count(std::vector<std::int64_t> received, const RoutedActivations& a,
                              const MicroBatch& batch) const
{
  ExpertRows rows(std::move(received), context_.config.experts.count / sources_, batch_order(batch).leaves());
  fill(*context_.stream, a.leaf_ends, rows.ends);
  return rows;
}

void ExpertLayer::scatter(const Tensor& rows, const BranchActivations& a) const
{
  context_.kernels->scatter_rows(rows, a.normalised, a.routed.places);
}

void ExpertLayer::forward(const Tensor& output, const RoutedActivations& a, const std::vector<ExpertTensors>& p,
                          const ExpertRows& rows) const
{
  const Kernels& kernels = context_.kernels;
  const std::int64_t C = context_.config.channels, F = hidden_channels();
  const bool whole = context_.part.count == 1;  // otherwise the bias is added to the sum of all parts
  for (std::int64_t source = 0; source < rows.sources(); ++source)
    for_each_chunk(rows, source, [&](std::size_t e, Range chunk, std::int64_t) {
      const std::int64_t n = chunk.count;
      const Tensor hidden = rows_of(a.hidden, chunk, F);
      kernels->matmul_gelu_forward(hidden, Matrix::of(rows_of(a.inner, chunk, F), n),
                                   Matrix::of(rows_of(a.received, chunk, C), n), Matrix::of(p[e].in_weight, C),
                                   SumOrder::sequential(C), p[e].in_bias);
      kernels->matmul(Matrix::of(rows_of(output, chunk, C), n), Matrix::of(hidden, n),
                      Matrix::of(p[e].out_weight, F), over_hidden(), whole ? p[e].out_bias : Tensor());
    });
}

void ExpertLayer::add_bias(const Tensor& output, const std::vector<ExpertTensors>& p, const ExpertRows& rows) const
{
  if (context_.part.count == 1) return;
  for (std::int64_t source = 0; source < rows.sources(); ++source)
    for_each_chunk(rows, source, [&](std::size_t e, Range chunk, std::int64_t) {
      // The bias is added as a position is: as the only one of sequences of one token.
      const Tensor of_expert = rows_of(output, chunk, context_.config.channels);
      context_.kernels->position_forward(of_expert, of_expert, p[e].out_bias, {{0, chunk.count}, {0, 1}}, {});
    });
}

void ExpertLayer::combine(const Tensor& output, const RoutedActivations& a) const
{
  context_.kernels->combine_rows(output, a.returned, a.places, a.weights);
}

void ExpertLayer::combine_backward(const Tensor& drows, const Workspace::Experts& work, const Tensor& doutput,
                                   const RoutedActivations& a) const
{
  context_.kernels->combine_rows_backward(drows, work.dweights, doutput, a.returned, a.places, a.weights);
}

void ExpertLayer::backward(const Workspace::Experts& work, const std::vector<ExpertTensors>& d,
                           const RoutedActivations& a, const std::vector<ExpertTensors>& p, const ExpertRows& rows,
                           std::int64_t source) const
{
  const Kernels& kernels = context_.kernels;
  const std::int64_t C = context_.config.channels, F = hidden_channels();
  const std::int64_t* const ends = a.leaf_ends.data<std::int64_t>();
  for_each_chunk(rows, source, [&](std::size_t e, Range chunk, std::int64_t number) {
    // forward:   inner = x in_weight + in_bias; hidden = gelu(inner); y = hidden out_weight + out_bias
    const std::int64_t n = chunk.count;
    const SumOrder over_rows = SumOrder::routed(n, rows.leaves, ends + number * rows.leaves);
    const Tensor rows_of_dy = rows_of(work.output, chunk, C), rows_of_dinner = rows_of(work.wide, chunk, F);
    const Matrix dy = Matrix::of(rows_of_dy, n), dinner = Matrix::of(rows_of_dinner, n);
    kernels->bias_backward(d[e].out_bias, rows_of_dy, over_rows);
    kernels->matmul(Matrix::of(d[e].out_weight, F), Matrix::of(rows_of(a.hidden, chunk, F), n).transposed(), dy,
                    over_rows, {}, true);
    kernels->matmul_gelu_backward(dinner, dy, Matrix::of(p[e].out_weight, F).transposed(), SumOrder::sequential(C),
                                  rows_of(a.inner, chunk, F));
    kernels->bias_backward(d[e].in_bias, rows_of_dinner, over_rows);
    kernels->matmul(Matrix::of(d[e].in_weight, C), Matrix::of(rows_of(a.received, chunk, C), n).transposed(),
                    dinner, over_rows, {}, true);
    kernels->matmul(dy, dinner, Matrix::of(p[e].in_weight, C).transposed(), over_hidden());
  });
}

void ExpertLayer::route_backward(const Tensor& dnormalised, const Tensor& drouter, const Tensor& drows,
                                 const Workspace::Experts& work, const BranchActivations& a, const Tensor& router,
                                 const MicroBatch& batch) const
{
  const Kernels& kernels = context_.kernels;
  const std::int64_t R = batch.rows.count(), C = context_.config.channels, E = context_.config.experts.count;
  // forward:   logits = normalised router; rows[place] = normalised
  kernels->route_backward(work.dlogits, work.dweights, a.routed.probabilities, a.routed.choices, a.routed.weights,
                          a.routed.pull);
  const Matrix dlogits = Matrix::of(work.dlogits, R);
  kernels->matmul(Matrix::of(drouter, C), Matrix::of(a.normalised, R).transposed(), dlogits, batch_order(batch), {},
                  true);
  kernels->combine_rows(dnormalised, drows, a.routed.places, {});
  kernels->matmul(Matrix::of(dnormalised, R), dlogits, Matrix::of(router, C).transposed(), SumOrder::sequential(E),
                  {}, true);
}

// ---- One device ----------------------------------------------------------------------------------------------------

void apply_experts(const ModelContext& context, const Workspace& work, const BranchActivations& a,
                   const BranchTensors& p, const MicroBatch& batch)
{
  const ExpertLayer layer(context);
  context.stream->zero(work.experts.no_bias);
  layer.route(work.experts, a, p.router, batch);
  const RoutingPlan plan = layer.plan(a.routed, batch);
  const ExpertRows rows = layer.count(plan.leaves, a.routed, batch);
  layer.scatter(a.routed.received, a);
  layer.forward(a.routed.returned, a.routed, p.experts, rows);
  layer.combine(work.output, a.routed);
}

void apply_experts_backward(const ModelContext& context, const Workspace& work, const BranchTensors& d,
                            const Tensor& doutput, const BranchActivations& a, const BranchTensors& p,
                            const MicroBatch& batch)
{
  const ExpertLayer layer(context);
  const Workspace::Experts& scratch = work.experts;
  const ExpertRows rows =
      layer.count(to_host<std::int64_t>(*context.stream, a.routed.sent_leaves), a.routed, batch);
  layer.combine_backward(scratch.output, scratch, doutput, a.routed);
  layer.backward(scratch, d.experts, a.routed, p.experts, rows, 0);
  layer.route_backward(work.output, d.router, scratch.output, scratch, a, p.router, batch);
}

BranchTensors without_bias(const BranchTensors& p, const Workspace& work)
{
  BranchTensors changed = p;
  changed.out_bias = work.experts.no_bias;
  return changed;
}

ExactScalar auxiliary_loss(Stream& stream, const RoutedActivations& a)
{
  ExactScalar sum;
  with_real_type(a.probabilities.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::vector<A> p = to_host<A>(stream, a.probabilities), pull = to_host<A>(stream, a.pull);
    const std::int64_t E = a.pull.extent(1), tokens = a.probabilities.extent(0) / a.pull.extent(0);
    for (std::int64_t i = 0; i < std::ssize(p); ++i)
      sum.add(static_cast<double>(p[static_cast<std::size_t>(i)]) *
              static_cast<double>(pull[static_cast<std::size_t>(i / E / tokens * E + i % E)]));
  });
  return sum;
}

}  // namespace rankwise
