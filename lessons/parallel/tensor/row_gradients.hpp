#pragma once

#include <cstdint>
#include <vector>

#include "common/memory/device.hpp"
#include "common/messages/group.hpp"
#include "gpt2/activations.hpp"
#include "gpt2/model.hpp"
#include "gpt2/parameter_table.hpp"

/// @file
/// Gradients of replicated parameters under sequence parallelism, where each rank sums over some of the rows.

namespace rankwise {

/// Gradients of the norms, and of the biases that are added after a sum over the ranks. They are sums over rows,
/// which sequence parallelism divides.
///
/// A rank sums over its tokens of each sequence. Once a micro-batch one all-reduce adds up these sums over the
/// ranks, and then they are added up over sequences: tokens first, then sequences, the same order as without
/// sequence parallelism. Without it each rank has all rows, and nothing is sent.
///
/// There are 3 C numbers for each branch and 2 C for the head, times the B sequences of a micro-batch: 3 / T of the
/// rows' bytes.
class RowGradients {
 public:
  /// @param memory   where the sums are kept; counted as communication.
  /// @param stream   of the same device.
  /// @param table    of this tensor-parallel rank, of all units or some.
  /// @param shape    of a micro-batch.
  /// @param kernels  of the same device. All arguments outlive this object.
  RowGradients(const DeviceMemory& memory, Stream& stream, const ParameterTable& table,
               const ActivationShape& shape, const Kernels& kernels);

  /// Branch::add_backward() over this rank's rows.
  Tensor add_backward(const Branch& branch, const BranchTensors& d, const Tensor& dx, const Tensor& scratch,
                      const MicroBatch& rows) const;
  /// Branch::normalise_backward() over this rank's rows.
  void normalise_backward(const Branch& branch, const Tensor& dx, const BranchTensors& d, const Tensor& dnormalised,
                          const BranchActivations& a, const BranchTensors& p, const MicroBatch& rows) const;
  /// Head::normalise_backward() over this rank's rows.
  void normalise_backward(const Head& head, const Tensor& dx, const HeadTensors& d, const Tensor& dnormalised,
                          const HeadActivations& a, const HeadTensors& p, const MicroBatch& rows) const;
  /// Adds the sums of all ranks to the gradients of the micro-batch, and sets them to zero for the next one.
  /// @param gradients  (table.elements()) of this tensor-parallel rank.
  /// @param group      the t ranks; all of them make this call.
  void add_to(const Tensor& gradients, Group& group) { add_to(gradients, {0, gradients.elements()}, group); }
  /// The same for some tensors of the table, whose gradients are complete.
  /// @param gradients  (elements.count) of these tensors.
  /// @param elements   of whole units of the table, or of its replicated tensors.
  void add_to(const Tensor& gradients, Range elements, Group& group);

  /// f32 numbers that are kept here, and summed over the ranks once a micro-batch.
  static std::int64_t elements(const ParameterTable& table, const ActivationShape& shape)
  {
    return elements(table, shape, {0, table.elements()});
  }
  /// Those of the tensors in a range of the table.
  static std::int64_t elements(const ParameterTable& table, const ActivationShape& shape, Range within);

 private:
  /// A replicated tensor of n elements, and its gradients by sequence, (B, n).
  struct Sum {
    Range elements;  // in the table
    int unit;
    Range kept;  // in flat_
    Tensor by_sequence;
  };
  bool divides_rows() const { return shape_.tokens.count > 1; }
  std::vector<Tensor> of(int unit, std::int64_t b) const;
  Tensor rows_of(const Tensor& rows, std::int64_t b) const;

  Stream& stream_;
  const Kernels& kernels_;
  ActivationShape shape_;
  Buffer flat_;
  std::vector<Sum> sums_;
};

}  // namespace rankwise
