#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/base/source_location.hpp"
#include "common/memory/device.hpp"
#include "common/memory/tensor.hpp"

/// @file
/// Communication from one rank to another: the little that all collectives are made of.

namespace rankwise {

/// One message as one of its two ranks sees it.
struct Transfer {
  /// Which way it goes.
  enum class Direction : std::uint8_t { send, receive };

  Direction direction;                               ///< as seen from this rank
  Tensor data;                                       ///< what is sent, or where it arrives; any type
  int peer;                                          ///< the other rank, 0 <= peer < ranks
  SourceLocation where = SourceLocation::current();  ///< who starts it
};

/// What the collectives of this thread are for, up to the end of the scope: `const CollectiveLabel label("h.2.mlp");`
/// All ranks of a group have the same label when they call a collective.
class CollectiveLabel {
 public:
  /// @param text  is copied; the label of an outer scope comes back at the end of this one.
  explicit CollectiveLabel(std::string_view text);
  ~CollectiveLabel();
  CollectiveLabel(const CollectiveLabel&) = delete;
  CollectiveLabel& operator=(const CollectiveLabel&) = delete;

  /// The label of this thread, empty without any.
  static std::string_view current();

 private:
  std::string text_;
  const CollectiveLabel* outer_;
};

/// What a collective is called with. All ranks of the group have to agree on everything but the line.
struct Collective {
  std::string_view name;                                ///< as "all-reduce"; a literal
  std::string_view algorithm;                           ///< as "ring"; a literal
  DType type = DType::u8;                               ///< of its elements
  std::int64_t count = 0;                               ///< number of elements
  int root = 0;                                         ///< of those that have one
  SourceLocation where = SourceLocation::current();     ///< who called it
  std::string_view label = CollectiveLabel::current();  ///< what it is for
};

/// Transfers that were started together and have to be finished.
using Ticket = std::int64_t;

/// Sends and receives between the N ranks of a group. One thread at a time uses it.
///
/// Communication between two ranks arrive in the order in which both sides started them; the two sides agree on type and
/// number of elements. Transfers without elements are left out, on both sides.
class Transport {
 public:
  virtual ~Transport() = default;

  /// This rank, 0 <= rank < ranks.
  virtual int rank() const = 0;
  /// N.
  virtual int ranks() const = 0;
  /// The stream that adds up what arrives; the tensors lie in its device's memory.
  virtual Stream& stream() = 0;

  /// Starts transfers, all at once, so that none waits for another in the list. Until finish() what is sent is not
  /// changed, and what is received is not read.
  /// @return  what to give to finish(), once.
  /// @failure Error.
  virtual Ticket start(std::span<const Transfer> transfers) = 0;
  /// Returns when the transfers are done: what was sent may be changed, what was received can be read.
  virtual void finish(Ticket ticket) = 0;

  /// The messages from here on belong to this collective; for those who count or watch them. Not to be nested.
  virtual void enter(const Collective& collective) = 0;
  /// The collective is over on this rank.
  virtual void leave() = 0;

  /// Sends and waits.
  void send(const Tensor& data, int to, SourceLocation where = SourceLocation::current());
  /// Waits for a message.
  void receive(const Tensor& data, int from, SourceLocation where = SourceLocation::current());
  /// Sends and receives at once, and waits for both: a ring of ranks may do this together.
  void exchange(const Tensor& sent, int to, const Tensor& received, int from,
                SourceLocation where = SourceLocation::current());
};

/// A transport around another one: it passes everything on. What watches or changes messages derives from it and says
/// what is different; such layers can be stacked.
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
