#pragma once

extern thread_local bool writes_grammars; // for the requests of this thread
