#pragma once

#include "common/messages/communicator.hpp"
#include "common/messages/transport.hpp"

/// @file
/// `--check-messages`: detects ranks that call different collectives, which would otherwise deadlock.

namespace rankwise {

/// The layer that compares the ranks' calls before each collective: name, algorithm, type, count, root; for
/// all-to-all-v the size of each message with the size that its receiver expects.
///
/// @cost  an all-gather of 64 bytes per rank for each collective.
class ComparingTransport final : public TransportLayer {
 public:
  /// @param inner         the layer below.
  /// @param communicator  the same ranks; a duplicate of it carries the comparison.
  ComparingTransport(Transport& inner, const Communicator& communicator);

  /// @throws UserError  on all ranks, if their calls differ, with the calls, or the sizes that senders and
  ///                    receivers give.
  void enter(const Collective& collective) override;

 private:
  Communicator communicator_;
};

}  // namespace rankwise
