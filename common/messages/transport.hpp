#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/base/source_location.hpp"
#include "common/memory/device.hpp"
#include "common/memory/tensor.hpp"

/// @file
/// Point-to-point messages between ranks, on which all collectives are built.

namespace rankwise {

/// One message as seen by its sender or its receiver.
struct Transfer {
  /// Send or receive.
  enum class Direction : std::uint8_t { send, receive };

  Direction direction;                               ///< send or receive, as seen from this rank
  Tensor data;                                       ///< data to send, or buffer to receive into; any type
  int peer;                                          ///< the other rank, 0 <= peer < ranks
  SourceLocation where = SourceLocation::current();  ///< line that starts it
};

/// Labels the collectives of this thread with their purpose until the end of the scope:
/// `const CollectiveLabel label("h.2.mlp");` All ranks of a group call a collective with the same label.
class CollectiveLabel {
 public:
  /// @param text  is copied; at the end of the scope the label of the enclosing scope is restored.
  explicit CollectiveLabel(std::string_view text);
  ~CollectiveLabel();
  CollectiveLabel(const CollectiveLabel&) = delete;
  CollectiveLabel& operator=(const CollectiveLabel&) = delete;

  /// The current label of this thread; empty if none.
  static std::string_view current();

 private:
  std::string text_;
  const CollectiveLabel* outer_;
};

/// The arguments of a collective call. All ranks of the group must agree on everything but the line.
struct Collective {
  std::string_view name;                             ///< as "all-reduce"; a literal
  std::string_view algorithm;                        ///< as "ring"; a literal
  DType type = DType::u8;                            ///< element type
  std::int64_t count = 0;                            ///< number of elements; 0 for all-to-all-v, where ranks differ
  int root = 0;                                      ///< root rank, for collectives that have one
  SourceLocation where = SourceLocation::current();  ///< line of the caller
  std::string_view label = CollectiveLabel::current();  ///< its purpose
  std::span<const std::int64_t> sent{};                 ///< all-to-all-v: elements to each rank; valid in enter()
  std::span<const std::int64_t> received{};             ///< all-to-all-v: elements from each rank; valid in enter()
};

/// Handle of transfers that were started together and must be finished.
using Ticket = std::int64_t;

/// Sends and receives between the N ranks of a group. One thread at a time uses it.
///
/// Messages between two ranks arrive in the order in which both sides started them; the two sides agree on type and
/// number of elements. Transfers without elements are skipped on both sides.
class Transport {
 public:
  virtual ~Transport() = default;

  /// This rank, 0 <= rank < ranks.
  virtual int rank() const = 0;
  /// N.
  virtual int ranks() const = 0;
  /// The stream that sums received data; all tensors are in its device's memory.
  virtual Stream& stream() = 0;

  /// Starts all transfers at once, so that none waits for another in the list. Until finish() the caller must not
  /// change data being sent, nor read buffers being received.
  /// @return  ticket to pass to finish(), once.
  /// @failure Error.
  virtual Ticket start(std::span<const Transfer> transfers) = 0;
  /// Returns when the transfers are done: sent data may be changed, received data can be read.
  virtual void finish(Ticket ticket) = 0;

  /// Declares that the following messages belong to this collective, for layers that count or watch them. Must not
  /// be nested.
  virtual void enter(const Collective& collective) = 0;
  /// Declares the end of the collective on this rank.
  virtual void leave() = 0;

  /// Sends a message and waits until it is sent.
  void send(const Tensor& data, int to, SourceLocation where = SourceLocation::current());
  /// Receives a message, waiting for it.
  void receive(const Tensor& data, int from, SourceLocation where = SourceLocation::current());
  /// Sends and receives at once, and waits for both: a ring of ranks can do this without deadlock.
  void exchange(const Tensor& sent, int to, const Tensor& received, int from,
                SourceLocation where = SourceLocation::current());
};

/// A transport that forwards everything to an inner one. Layers that watch or change messages derive from it and
/// override what differs; layers can be stacked.
class TransportLayer : public Transport {
 public:
  /// @param inner  outlives the layer.
  explicit TransportLayer(Transport& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int ranks() const override { return inner_.ranks(); }
  Stream& stream() override { return inner_.stream(); }
  Ticket start(std::span<const Transfer> transfers) override { return inner_.start(transfers); }
  void finish(Ticket ticket) override { inner_.finish(ticket); }
  void enter(const Collective& collective) override { inner_.enter(collective); }
  void leave() override { inner_.leave(); }

 private:
  Transport& inner_;
};

}  // namespace rankwise
