from tests.frameworks.nemo.gymserver import build

app = build("typed", "resources_servers.example_single_tool_call.app:SimpleWeatherResourcesServer")
