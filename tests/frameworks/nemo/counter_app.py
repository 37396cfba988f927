from tests.frameworks.nemo.gymserver import build

app = build("counter", "resources_servers.example_session_state_mgmt.app:StatefulCounterResourcesServer")
