#pragma once

extern thread_local bool writes_grammars; // of the requests that this thread applies
