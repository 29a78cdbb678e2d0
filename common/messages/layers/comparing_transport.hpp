#pragma once

#include "common/messages/communicator.hpp"
#include "common/messages/transport.hpp"

/// @file
/// `--check-messages`: ranks that call different collectives find out, instead of waiting for ever.

namespace rankwise {

/// The layer that compares what the ranks call before they send: name, algorithm, type, count, root.
///
/// It costs an all-gather of 64 bytes a rank each time.
class ComparingTransport final : public TransportLayer {
 public:
  /// @param inner         where messages go on to.
  /// @param communicator  the same ranks; a copy of it carries what is compared.
  ComparingTransport(Transport& inner, const Communicator& communicator);

  /// @throws UserError  on all ranks, when they do not all call the same: who calls what.
  void enter(const Collective& collective) override;

 private:
  Communicator communicator_;
};

}  // namespace rankwise
