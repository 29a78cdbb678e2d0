#pragma once

#include <cstdint>
#include <vector>

#include "common/memory/device.hpp"
#include "common/messages/group.hpp"
#include "gpt2/activations.hpp"
#include "gpt2/model.hpp"
#include "gpt2/parameter_table.hpp"

/// @file
/// The gradients of what every part has, where each has some of the rows that they are sums over.

namespace rankwise {

/// Sums over rows, which sequence parallelism divides: the gradients of norms, and of the biases behind a sum of parts.
///
/// A part sums its tokens of each sequence; the sums of all parts are added up once a pass, sequence by sequence: tokens
/// first, then sequences, as where nobody divides a sequence. Without sequence parallelism all of that is one sum on each
/// rank, and nothing is sent.
///
/// Their number is 3 C for each branch and 2 C for the head, times the B sequences of a pass: (3 / T) of the rows' bytes.
class RowGradients {
 public:
  /// @param memory   of the group's messages; counted as communication.
  /// @param stream   of that device.
  /// @param table    of this part, of all units or some.
  /// @param shape    of a micro-batch.
  /// @param kernels  of that device; all outlives this.
  RowGradients(const DeviceMemory& memory, Stream& stream, const ParameterTable& table,
               const ActivationShape& shape, const Kernels& kernels);

  /// Branch::add_backward() over this part's rows.
  Tensor add_backward(const Branch& branch, const BranchTensors& d, const Tensor& dx, const Tensor& scratch,
                      const MicroBatch& rows) const;
  /// The two halves of that, where gradients of weights come later: the first one, whose sums over rows are made at once where
  /// rows are divided, and the second one, with the rows of all parts.
  Tensor output_backward(const Branch& branch, const Tensor& dx, const Tensor& scratch,
                         const MicroBatch& rows) const;
  void out_bias_backward(const Branch& branch, const BranchTensors& d, const Tensor& doutput,
                         const MicroBatch& batch) const;  ///< as output_backward()
  /// Branch::normalise_backward() over this part's rows.
  void normalise_backward(const Branch& branch, const Tensor& dx, const BranchTensors& d, const Tensor& dnormalised,
                          const BranchActivations& a, const BranchTensors& p, const MicroBatch& rows) const;
  /// Head::normalise_backward() over this part's rows.
  void normalise_backward(const Head& head, const Tensor& dx, const HeadTensors& d, const Tensor& dnormalised,
                          const HeadActivations& a, const HeadTensors& p, const MicroBatch& rows) const;
  /// Adds the sums of all parts to the gradients of the pass; those of the next pass begin at zero.
  /// @param gradients  (table.elements()) of this part.
  void add_to(const Tensor& gradients, Group& group);

  /// f32 numbers that this keeps, and sends once a pass.
  static std::int64_t elements(const ParameterTable& table, const ActivationShape& shape);

 private:
  /// A tensor that every part has, and where its gradients by sequence are: (B, n).
  struct Sum {
    Range elements;  // of the table
    int unit;
    Tensor by_sequence;
  };
  bool divides_rows() const { return shape_.tokens.count > 1; }
  std::vector<Tensor> of(int unit, std::int64_t b) const;
  Tensor rows_of(const Tensor& rows, std::int64_t b) const;

  Stream& stream_;
  const Kernels& kernels_;
  ActivationShape shape_;
  Buffer room_;
  std::vector<Sum> sums_;
};

}  // namespace rankwise
