"""Classification of event streams: spoken digits and words as spikes, gestures and digits recorded by an event camera."""

from longscan.tasks.events.task import Events as Events
