#include "lessons/parallel/tensor/row_gradients.hpp"

#include <algorithm>
#include <iterator>

#include "common/collectives/collectives.hpp"

namespace rankwise {

namespace {

/// True if the gradient of a tensor is a sum over this rank's rows only.
bool sums_over_rows(const Parameter& p)
{
  // Not wpe, nor an expert's bias: for these each rank sums over all rows.
  return p.split == Split::none && p.shape.rank() == 1 && p.expert < 0;
}

}  // namespace

std::int64_t RowGradients::elements(const ParameterTable& table, const ActivationShape& shape, Range within)
{
  if (shape.tokens.count == 1) return 0;
  std::int64_t elements = 0;
  for (const Parameter& p : table.entries())
    if (sums_over_rows(p) && within.contains(p.elements.first)) elements += shape.B * p.elements.count;
  return elements;
}

RowGradients::RowGradients(const DeviceMemory& memory, Stream& stream, const ParameterTable& table,
                           const ActivationShape& shape, const Kernels& kernels)
    : stream_(stream), kernels_(kernels), shape_(shape)
{
  if (!divides_rows()) return;
  flat_ = Buffer(memory, Category::communication, DType::f32, {elements(table, shape)}, "gradients by sequence");
  stream_.zero(flat_.tensor());
  std::int64_t first = 0;
  for (const Parameter& p : table.entries()) {
    if (!sums_over_rows(p)) continue;
    const Range kept{first, shape.B * p.elements.count};
    sums_.push_back({p.elements, p.unit, kept, flat_.tensor().slice(kept)});
    first += kept.count;
  }
}

/// The gradients of a unit from sequence @p b, in the order of the table.
std::vector<Tensor> RowGradients::of(int unit, std::int64_t b) const
{
  std::vector<Tensor> tensors;
  for (const Sum& sum : sums_)
    if (sum.unit == unit) tensors.push_back(sum.by_sequence.slice({b * sum.elements.count, sum.elements.count}));
  return tensors;
}

/// The rows of sequence @p b.
Tensor RowGradients::rows_of(const Tensor& rows, std::int64_t b) const
{
  const std::int64_t run = rows.elements() / shape_.B;
  return rows.slice({b * run, run});
}

Tensor RowGradients::add_backward(const Branch& branch, const BranchTensors& d, const Tensor& dx,
                                  const Tensor& scratch, const MicroBatch& rows) const
{
  if (!divides_rows()) return branch.add_backward(d, dx, scratch, rows);
  const Tensor own_scratch = scratch.slice({0, dx.elements()});
  Tensor first;
  for (std::int64_t b = 0; b < shape_.B; ++b) {
    BranchTensors of_sequence;
    of_sequence.out_bias = of(branch.unit(), b)[2];
    const Tensor doutput =
        branch.add_backward(of_sequence, rows_of(dx, b), rows_of(own_scratch, b), sequence_of(rows, b));
    if (b == 0) first = doutput;
  }
  return first.raw() == dx.raw() ? dx : own_scratch;
}

namespace {

/// The activations that normalise_backward() reads, for one sequence.
template <class A>
A sequence_of(A a, const Tensor& input, const Tensor& mean, const Tensor& rstd)
{
  a.input = input;
  a.mean = mean;
  a.rstd = rstd;
  return a;
}

}  // namespace

void RowGradients::normalise_backward(const Branch& branch, const Tensor& dx, const BranchTensors& d,
                                      const Tensor& dnormalised, const BranchActivations& a, const BranchTensors& p,
                                      const MicroBatch& rows) const
{
  if (!divides_rows()) return branch.normalise_backward(dx, d, dnormalised, a, p, rows);
  for (std::int64_t b = 0; b < shape_.B; ++b) {
    const std::vector<Tensor> sums = of(branch.unit(), b);
    BranchTensors of_sequence;
    of_sequence.norm_weight = sums[0];
    of_sequence.norm_bias = sums[1];
    branch.normalise_backward(rows_of(dx, b), of_sequence, rows_of(dnormalised, b),
                              sequence_of(a, rows_of(a.input, b), rows_of(a.mean, b), rows_of(a.rstd, b)), p,
                              rankwise::sequence_of(rows, b));
  }
}

void RowGradients::normalise_backward(const Head& head, const Tensor& dx, const HeadTensors& d,
                                      const Tensor& dnormalised, const HeadActivations& a, const HeadTensors& p,
                                      const MicroBatch& rows) const
{
  if (!divides_rows()) return head.normalise_backward(dx, d, dnormalised, a, p, rows);
  for (std::int64_t b = 0; b < shape_.B; ++b) {
    const std::vector<Tensor> sums = of(sums_.back().unit, b);
    head.normalise_backward(rows_of(dx, b), head_tensors(sums, {}), rows_of(dnormalised, b),
                            sequence_of(a, rows_of(a.input, b), rows_of(a.mean, b), rows_of(a.rstd, b)), p,
                            rankwise::sequence_of(rows, b));
  }
}

void RowGradients::add_to(const Tensor& gradients, Range elements, Group& group)
{
  if (!divides_rows()) return;
  std::vector<Sum> sums;
  std::copy_if(sums_.begin(), sums_.end(), std::back_inserter(sums),
               [&](const Sum& sum) { return elements.contains(sum.elements.first); });
  if (sums.empty()) return;
  const std::int64_t first = sums.front().kept.first;
  const Tensor all = flat_.tensor().slice({first, sums.back().kept.end() - first});
  // First over ranks, then over sequences: the order of sums of a single device.
  all_reduce_sum(all, group);
  for (const Sum& sum : sums)
    kernels_->bias_backward(gradients.slice({sum.elements.first - elements.first, sum.elements.count}),
                            sum.by_sequence, SumOrder::sequences(shape_.B));
  stream_.zero(all);
}

}  // namespace rankwise
